-- API keys (macaroons): written by access/. An access key for S3 stands for one; one that is older than them has none, and
-- may do what every key could do when it was made.

create table api_keys (
    head       bytea primary key,
    secret     bytea not null,                                       -- what its tail is made with
    actions    text[] not null,                                      -- what it was made for; later actions are not among them
    project_id uuid not null references projects (id) on delete cascade,
    created_at timestamptz not null default now()
);

-- A key whose tail is here, and every key that was made of it, is none any more.
create table revoked_tails (
    tail       bytea primary key,
    revoked_at timestamptz not null default now()
);

alter table access_keys
    add column head    bytea references api_keys (head) on delete cascade,
    add column api_key text,
    add check ((head is null) = (api_key is null));
