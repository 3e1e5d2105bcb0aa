-- Topics and their subscriptions: written by topics/. A project is named by its public id.

create table topics (
    arn               text primary key,
    project           text not null,
    display_name      text not null default '',
    signature_version smallint not null default 1 check (signature_version in (1, 2)),
    tags              jsonb not null default '{}',
    created_at        timestamptz not null default now()
);
create index topics_project on topics (project, arn);

-- What other projects may do with a topic: name it in a rule (Publish), subscribe to it (Subscribe).
create table topic_grants (
    topic   text not null references topics (arn) on delete cascade,
    label   text not null,
    project text not null,
    action  text not null check (action in ('Publish', 'Subscribe')),
    primary key (topic, label, project, action)
);

create table subscriptions (
    arn           text primary key,
    topic         text not null references topics (arn) on delete cascade,
    project       text not null,                                     -- who subscribed
    protocol      text not null check (protocol in ('http', 'https', 'sqs')),
    endpoint      text not null,
    raw           boolean not null default false,                    -- the body as it is, without SNS's envelope
    secrets       text[] not null default '{}',                      -- of Standard Webhooks: the newest first, two at most
    token         bytea,                                             -- the SHA-256 of what confirms it
    token_until   timestamptz,
    authenticated boolean not null default false,                    -- whether only a signed call ends it
    left_at       timestamptz,                                       -- unsubscribed: kept for who wants to come back
    lane          bigint unique references lanes (id),               -- null until it is confirmed
    created_at    timestamptz not null default now(),
    unique (topic, protocol, endpoint)
);
create index subscriptions_project on subscriptions (project, arn);

-- The stream makes its plan again when it is somebody else who is to be told. It closes the lane that nothing leads to any more.
create function subscribers_changed() returns trigger language plpgsql as $$
begin
    update rules_version set version = version + 1;
    return null;
end
$$;
create trigger subscribers_inserted after insert on subscriptions
    for each row when (new.lane is not null) execute function subscribers_changed();
create trigger subscribers_updated after update on subscriptions
    for each row when (new.lane is distinct from old.lane) execute function subscribers_changed();
create trigger subscribers_deleted after delete on subscriptions
    for each row when (old.lane is not null) execute function subscribers_changed();

-- What messages are signed with, if the settings name no files. One row; the key is a secret.
create table signing_key (
    one         boolean primary key default true check (one),
    private_key text not null,                                       -- PEM
    certificate text not null,                                       -- PEM
    created_at  timestamptz not null default now()
);
