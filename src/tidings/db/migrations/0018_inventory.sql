-- The live inventory: written by consumers/inventory/, from notifications alone.

-- One row for each object version that a notification has spoken of; what the one with the highest sequencer said. Rows of
-- versions that were deleted stay as tombstones: an older notification may still come, and must not bring them back.
create table inventory (
    bucket        text not null collate "C",
    bucket_id     text not null collate "C",                         -- two projects may have buckets of one name
    key           text not null collate "C",
    version_id    text not null collate "C",                         -- 'null' where versioning is or was not enabled
    sequencer     text not null collate "C",
    event_type    text not null,
    delete_marker boolean not null,
    tombstone     boolean not null,
    size          bigint not null,
    etag          text,
    content_type  text,
    event_at      timestamptz not null,
    primary key (bucket, bucket_id, key, version_id)
);

-- What ListObjectVersions shows. Nothing tells which version is the latest when the one before it goes: it follows.
create view inventory_versions as
select bucket, bucket_id, key, version_id, sequencer, event_type, delete_marker, size, etag, content_type, event_at,
       row_number() over (partition by bucket, bucket_id, key order by sequencer desc) = 1 as is_latest
from inventory where not tombstone;

-- How far each partition was read: moved in the transaction that merges what was read.
create table inventory_offsets (
    cluster     text not null,
    topic       text not null,
    part        integer not null,
    next_offset bigint not null,
    primary key (cluster, topic, part)
);

-- Messages that could not be used, the newest of them.
create table inventory_rejects (
    id          bigint generated always as identity primary key,
    cluster     text not null,
    topic       text not null,
    part        integer not null,
    at_offset   bigint not null,
    reason      text not null,
    body        bytea,                                               -- its beginning
    rejected_at timestamptz not null default now(),
    unique (cluster, topic, part, at_offset)
);
