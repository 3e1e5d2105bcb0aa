-- Queues, their messages and who else may use them: written by queues/.

-- The messages of a queue are in its pile. A purge begins a new pile and a queue that is deleted leaves its own behind: both are
-- done at once, however many messages there are, and what is in a pile of nobody is removed later.
create sequence queue_piles;

create table queues (
    id                 bigint generated always as identity primary key,
    project            text not null,                                -- public id
    name               text not null collate "C",
    pile               bigint not null unique default nextval('queue_piles'),
    visibility_seconds integer not null default 30,
    retention_seconds  integer not null default 345600,              -- four days
    delay_seconds      integer not null default 0,
    max_bytes          integer not null default 262144,
    wait_seconds       integer not null default 0,
    dead_letter        text collate "C",                             -- the name of a queue of the same project, which may be gone
    max_receives       integer,
    tags               jsonb not null default '{}',
    purged_at          timestamptz,
    created_at         timestamptz not null default now(),
    modified_at        timestamptz not null default now(),
    unique (project, name),
    check ((dead_letter is null) = (max_receives is null))
);
create index on queues (project, dead_letter) where dead_letter is not null;

create table queue_grants (
    queue   bigint not null references queues (id) on delete cascade,
    label   text not null,
    project text not null,                                           -- public id of who may
    action  text not null check (action in ('SendMessage', 'ReceiveMessage')),
    primary key (queue, label, project, action)
);

-- No foreign key: it would lock the queue's row for every message. The id is a uuidv7, and is when the message was sent: the
-- primary key finds what is too old. A receive changes visible_at, which is indexed, so no free space in pages would help.
create table queue_messages (
    pile              bigint not null,
    id                uuid not null default uuidv7(),
    visible_at        timestamptz not null,
    body              text not null,
    attributes        jsonb not null default '{}',
    trace             text,                                          -- AWSTraceHeader
    sender            text not null,
    receipt           uuid,                                          -- of the last receive
    receives          integer not null default 0,
    first_received_at timestamptz,
    source            bigint,                                        -- the queue that it was a dead letter of
    primary key (pile, id)
) with (
    -- Rows come and go: vacuum after some thousands, however large the table is, or receives would wade through what is gone.
    autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 5000, autovacuum_vacuum_insert_scale_factor = 0.2,
    autovacuum_analyze_scale_factor = 0, autovacuum_analyze_threshold = 20000, autovacuum_vacuum_cost_delay = 0
);
create index queue_messages_visible on queue_messages (pile, visible_at, id);

-- Moving messages from a dead letter queue to where they were before, or to one queue.
create table queue_moves (
    id          uuid primary key default uuidv7(),
    source      bigint not null references queues (id) on delete cascade,
    destination bigint references queues (id) on delete cascade,     -- null: each to the queue that it was a dead letter of
    per_second  integer,
    status      text not null default 'RUNNING' check (status in ('RUNNING', 'COMPLETED', 'CANCELLED', 'FAILED')),
    failure     text,
    to_move     bigint not null,
    moved       bigint not null default 0,
    started_at  timestamptz not null default now(),
    next_at     timestamptz not null default now()
);
create unique index queue_moves_running on queue_moves (source) where status = 'RUNNING';
create index on queue_moves (source, started_at);
