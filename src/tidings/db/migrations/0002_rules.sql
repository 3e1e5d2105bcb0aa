-- Notification configuration: written by rules/. A lane row is made together with the first rule that needs it,
-- so both tables are here; its state belongs to delivery/.

create table lanes (
    id          bigint generated always as identity primary key,
    project     text not null,                                       -- public id
    destination text not null,                                       -- ARN
    state       text not null default 'live' check (state in ('live', 'behind', 'ready')),
    win         bigint,                                              -- the cursor; null while live: the stream's position
    seq         bigint,
    attempts    integer not null default 0,
    next_try    timestamptz,
    error       text,
    since       timestamptz not null default now(),                  -- when it took this state
    unique (project, destination),
    check ((state = 'live') = (win is null)),
    check ((win is null) = (seq is null))
);

create table bucket_eventing_configs (
    project_id    uuid not null,
    bucket_name   text not null collate "C",
    config_id     text not null,
    topic_name    text not null,
    events        text[] not null,
    filter_prefix text,
    filter_suffix text,
    created_at    timestamptz not null default now(),
    updated_at    timestamptz not null default now(),
    rule          bigint generated always as identity unique,        -- names the rule in changes; new if the destination changes
    lane          bigint not null references lanes (id),
    primary key (project_id, bucket_name, config_id),
    foreign key (project_id, bucket_name) references bucket_metainfos (project_id, name) on delete cascade
);
