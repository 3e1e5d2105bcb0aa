-- Versions, tags, multipart uploads, and everything that any format wants to know of a change: written by store/.

alter table bucket_metainfos add column versioning text not null default 'unversioned'
    check (versioning in ('unversioned', 'enabled', 'suspended'));

-- The head of a key is its newest version, which may be a delete marker. Versions are numbered within their key.
alter table heads
    add column version_id    text not null default 'null' collate "C",
    add column ordinal       bigint not null default 1,
    add column delete_marker boolean not null default false,
    add column tags          jsonb not null default '{}',
    add column segments      jsonb;                                  -- [[name, size], ...] of the blobs of a larger object
update heads set segments = jsonb_build_array(jsonb_build_array(blob, size)) where blob is not null;
alter table heads drop column blob;                                  -- and the check that spoke of it
alter table heads add constraint heads_content
    check (case when delete_marker then body is null and segments is null else (body is null) <> (segments is null) end);

-- The versions that are no longer the newest. A key that has any has a head too.
create table versions (
    like heads including defaults including storage including constraints,
    primary key (bucket_id, key, version_id)
);
create unique index versions_ordinal on versions (bucket_id, key, ordinal);

create table uploads (
    id           text primary key,
    bucket_id    text not null references bucket_metainfos (id) on delete cascade,
    key          text not null collate "C",
    content_type text not null,
    metadata     jsonb not null,
    tags         jsonb not null,
    algorithm    text,                                               -- of the checksum that its parts carry
    whole        boolean not null default false,                     -- the checksum is one over the whole object
    created_at   timestamptz not null default clock_timestamp()
);
create index uploads_key on uploads (bucket_id, key, id);

create table parts (
    upload_id   text not null references uploads (id) on delete cascade,
    number      integer not null,
    size        bigint not null,
    etag        text not null,
    checksum    text,
    segment     text not null,
    modified_at timestamptz not null default clock_timestamp(),
    primary key (upload_id, number)
);

alter table changes
    add column operation    text,
    add column version_id   text,                                    -- null in a bucket that was never versioned
    add column versioning   text,
    add column old_size     bigint,                                  -- of what a delete removed
    add column content_type text,
    add column metadata     text,                                    -- JSON, as are the tags
    add column tags         text,
    add column copy_source  text,
    add column request_at   timestamptz,
    add column replaced     text;                                    -- what a delete marker took the place of: version or marker
