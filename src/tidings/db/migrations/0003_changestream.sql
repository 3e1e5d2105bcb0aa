-- The change stream: rows are appended in the transaction of the object they speak of, never updated, never deleted;
-- whole partitions are dropped. Columns that the reader needs are text, bigint and timestamptz: casts while reading
-- cost half of its speed.

create sequence change_seq cache 1;                                  -- a larger cache breaks the order per key

create table changes (
    seq        bigint not null,                                      -- drawn under the lock of the key's head row
    xid        xid8 not null default pg_current_xact_id(),
    at         timestamptz not null default clock_timestamp(),       -- with now() a late writer finds its partition gone
    id         text not null default uuidv7()::text,
    project    text not null,                                        -- public id
    bucket     text not null,
    bucket_id  text not null,
    key        text not null,
    encoded    text,                                                 -- the key form-encoded, where that differs
    event      text not null,
    size       bigint,
    etag       text,
    principal  text not null,
    source_ip  text not null,
    request_id text not null,
    config     bigint not null,
    rules      text                                                  -- ids of the rules that matched, joined by commas
) partition by range (at);

create table changes_default partition of changes default;

-- The stream reads only what a rule wanted.
create index changes_xid on changes (xid) where rules is not null;
create index changes_seq on changes (seq) where rules is not null;

create table windows (
    id       bigint primary key,
    snapshot pg_snapshot not null,
    token    text not null,
    lo       bigint not null,
    hi       bigint not null,
    n        bigint not null,
    cut_at   timestamptz not null default clock_timestamp()
);

create table stream (
    name  text primary key,
    epoch bigint not null default 0,
    win   bigint not null default 0,
    seq   bigint not null default 0,
    token text
);
insert into stream (name) values ('main');
