-- Projects, keys, buckets and objects: written by access/ and store/.

create table projects (
    id              uuid primary key default gen_random_uuid(),      -- private: never leaves the database
    public_id       text not null unique default gen_random_uuid()::text,
    name            text not null unique,
    path_encryption boolean not null default false,
    created_at      timestamptz not null default now()
);

create table access_keys (
    access_key_id     text primary key,
    secret_access_key text not null,
    project_id        uuid not null references projects (id) on delete cascade,
    created_at        timestamptz not null default now()
);

create table bucket_metainfos (
    project_id uuid not null references projects (id),
    name       text not null collate "C",
    id         text not null unique default uuidv7()::text,
    config     bigint not null default 0,                            -- counts the configuration's versions
    created_at timestamptz not null default now(),
    primary key (project_id, name)
);

-- One row for each key that has an object. The row is the lock for every operation on its key.
create table heads (
    bucket_id     text not null references bucket_metainfos (id),
    key           text not null collate "C",
    size          bigint not null,
    etag          text not null,
    content_type  text not null,
    metadata      jsonb not null,
    config        bigint not null,
    body          bytea,                                             -- a small object's bytes, or
    blob          text,                                              -- the name of its blob
    modified_at   timestamptz not null default clock_timestamp(),
    primary key (bucket_id, key),
    check ((body is null) <> (blob is null))
);
alter table heads alter column body set storage external;            -- 4 KiB at most: compressing costs more than it saves
