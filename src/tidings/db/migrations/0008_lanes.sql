-- Lanes complete, dead letters, replays, archives: written by delivery/.

alter table lanes
    drop constraint lanes_state_check,
    drop constraint lanes_project_destination_key,
    add constraint lanes_state_check check (state in ('live', 'behind', 'ready', 'paused', 'closed')),
    add column side bigint not null default 0,                       -- the replay that it is for; 0 is the lane itself
    add column peer text,                                            -- what may be dead behind several lanes, if not the destination
    add column xid  xid8 not null default pg_current_xact_id(),      -- made, or opened again, by: an older round does not serve it
    add unique (project, destination, side);

-- A rule to a topic of ours has no lane itself: each of the topic's subscriptions has one.
alter table bucket_eventing_configs alter column lane drop not null;

create table dead_letters (
    id         bigint generated always as identity primary key,
    lane       bigint not null references lanes (id),
    message    text not null,                                        -- its id
    win        bigint not null,
    seq        bigint not null,
    bucket     text,                                                 -- of the change; null where it is gone
    key        text,
    event      text,
    body       text not null,
    attributes jsonb not null,
    label      text,                                                 -- the message's key, for transports that have one
    reason     text not null,
    state      text not null default 'dead' check (state in ('dead', 'sent', 'discarded')),
    died_at    timestamptz not null default now(),
    ended_at   timestamptz,
    unique (lane, message)
);
create index dead_letters_dead on dead_letters (lane, win, seq) where state = 'dead';

-- Exceptions: what a lane's cursor has passed without its messages being sent, or sent again.
create table lane_log (
    id       bigint generated always as identity primary key,
    lane     bigint not null references lanes (id),
    what     text not null check (what in ('skipped', 'archived', 'closed', 'replayed')),
    from_win bigint not null,                                        -- (from, to]
    from_seq bigint not null,
    to_win   bigint not null,
    to_seq   bigint not null,
    n        bigint,                                                 -- how many changes, where that was counted
    place    text,                                                   -- of an archive
    state    text not null default 'done' check (state in ('done', 'kept', 'sent', 'discarded')),  -- an archive is kept until it is sent
    note     text,
    at       timestamptz not null default now()
);
create index lane_log_lane on lane_log (lane, to_win, to_seq);

-- A replay goes through a lane of its own, beside the one that it repeats.
create sequence replay_numbers;
create table replays (
    lane       bigint primary key references lanes (id),
    of_lane    bigint not null references lanes (id),
    rule       bigint not null,                                      -- as it is now
    sources    bigint[] not null,                                    -- the numbers that it had when changes were written
    prefix     text,
    until_win  bigint not null,
    until_seq  bigint not null,
    rate       float8,                                               -- messages a second; null for no limit
    wanted     bigint not null,                                      -- how many changes were found when it was asked for
    sent       bigint not null default 0,
    asked_at   timestamptz not null default now(),
    ended_at   timestamptz
);

-- Which lanes a change goes to: `source` is the number in the change, `rule` says what is wanted and how it is called.
create view routes as
select c.rule as source, c.rule, c.lane from bucket_eventing_configs c where c.lane is not null
union all
select s.source, r.rule, r.lane from replays r cross join unnest(r.sources) as s(source) where r.ended_at is null;

-- What a lane's messages say, where its owner has chosen; `headers` if its transport has them.
create view lane_formats as
select id as lane, null::text as format, split_part(destination, ':', 3) = 'kafka' as headers from lanes;

create function routes_changed() returns trigger language plpgsql as $$
begin
    update rules_version set version = version + 1;
    return null;
end
$$;
create trigger replays_changed after insert or update of ended_at on replays
    for each statement execute function routes_changed();

-- Lanes that stay open although no rule leads to them now.
create view kept_lanes as select null::bigint as lane where false;
