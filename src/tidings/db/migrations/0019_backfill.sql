-- Backfills: a rule is told of the objects that are older than itself. Begun by rules/ and delivery/, served by delivery/.

alter table lanes
    drop constraint lanes_state_check,
    add constraint lanes_state_check check (state in ('live', 'behind', 'ready', 'backfill', 'paused', 'closed'));

-- A backfill has a lane of its own beside each lane of its rule. Until it has ended the rule's events go through it.
create table backfills (
    id        bigint generated always as identity primary key,
    number    bigint not null,                                       -- from replay_numbers; the side of its lanes
    lane      bigint unique references lanes (id),                   -- null until the stream has opened it
    of_lane   bigint not null references lanes (id),                 -- the one beside it, which it ends in
    rule      bigint not null,
    bucket_id text not null,
    since     bigint not null,                                       -- the rule's: versions with a lower config are older than it
    top       bigint not null,                                       -- the sequencer of a key's newest version in the listing
    versions  boolean not null default false,                        -- also versions that are not the newest, and delete markers
    prefix    text not null default '',
    key       text not null default '' collate "C",                  -- the place in the listing: up to it everything is staged
    ordinal   bigint not null default 0,
    n         bigint not null default 0,                             -- how many rows were staged
    told      bigint not null default 0,                             -- up to this one they were delivered
    sent      bigint not null default 0,                             -- messages
    asked_at  timestamptz not null default now(),
    begun_at  timestamptz,                                           -- no writer is left that may not have seen the rule
    listed_at timestamptz,                                           -- everything is staged
    told_at   timestamptz,                                           -- and delivered: the rule's own events follow
    ended_at  timestamptz                                            -- they go through the rule's lane from here on
);
create unique index backfills_open on backfills (rule, of_lane) where ended_at is null;

-- The next page of the listing, as changes: `n` is their order. They go when they are delivered.
create table backfill_changes (
    like changes including defaults,
    backfill bigint not null references backfills (id) on delete cascade,
    n        bigint not null,
    primary key (backfill, n)
);

-- Versions that are older than the rule and were written when its numbers were drawn already: these have their own.
create table backfill_late (
    backfill   bigint not null references backfills (id) on delete cascade,
    key        text not null collate "C",
    version_id text not null collate "C",
    seq        bigint not null,
    primary key (backfill, key, version_id)
);

create or replace view routes as
select r.source, r.rule, r.lane from (
    select c.rule as source, c.rule, c.lane from bucket_eventing_configs c where c.lane is not null
    union all
    select c.rule, c.rule, s.lane from bucket_eventing_configs c join subscriptions s on s.topic = c.topic_name
    where s.lane is not null
    union all
    select c.rule, c.rule, c.lane from catalog_subscriptions c where c.lane is not null
    union all
    select c.rule, c.rule, s.lane from catalog_subscriptions c join subscriptions s on s.topic = c.destination
    where s.lane is not null
) as r
where not exists (
    select from backfills b where b.ended_at is null and b.lane is not null and b.rule = r.rule and b.of_lane = r.lane)
union all
select c.rule, c.rule, b.lane from backfills b join bucket_eventing_configs c on c.rule = b.rule
where b.ended_at is null and b.lane is not null
  and (c.lane = b.of_lane or exists (select from subscriptions s where s.topic = c.topic_name and s.lane = b.of_lane))
union all
select s.source, r.rule, r.lane from replays r cross join unnest(r.sources) as s(source) where r.ended_at is null;

-- A lane that a backfill will end in stays open.
create or replace view kept_lanes as
select lane from subscriptions where lane is not null
union all
select b.of_lane from backfills b where b.ended_at is null
  and exists (select from bucket_eventing_configs c where c.rule = b.rule);

create trigger backfills_changed after insert or update of lane, ended_at on backfills
    for each statement execute function routes_changed();
