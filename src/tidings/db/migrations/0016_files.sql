-- The file registry (seed 002): written by consumers/files/. It has a schema of its own, as the seed's lookup names it: an
-- application that keeps its atlases there shares them with the registry, and nothing of ours is in its way.

create schema hat;

create table hat.atlases (
    id         uuid primary key default uuidv7(),
    overview   jsonb not null
               check (overview ?& array['network', 'shortName', 'version']),
    created_at timestamptz not null default now()
);
-- "1" and "1.0" are the same version: two atlases that a file could belong to alike must not be there.
create unique index atlases_lookup on hat.atlases
    ((overview ->> 'network'), lower(overview ->> 'shortName'), regexp_replace(overview ->> 'version', '\.0$', ''));

create table hat.source_studies (
    id         uuid primary key default uuidv7(),
    doi        text not null check (doi = lower(doi) and doi like '10.%/%'),  -- bare: no https://doi.org/ in front
    title      text not null default '',
    created_at timestamptz not null default now(),
    unique (doi)
);

create table hat.files (
    id                   bigint generated always as identity primary key,
    bucket               text collate "C" not null,
    key                  text collate "C" not null,                  -- as it is, not as the event has it encoded
    version_id           text collate "C",                           -- null: the null version, or a bucket without versions
    etag                 text not null,
    size_bytes           bigint not null check (size_bytes >= 0),
    sequencer            text collate "C" not null,                  -- 32 hexadecimal digits: comparable as text
    event_name           text not null,
    event_time           timestamptz not null,
    file_type            text not null,
    atlas_id             uuid references hat.atlases (id),
    source_study_id      uuid references hat.source_studies (id),    -- known once the file was validated
    is_latest            boolean not null,
    sha256_client        text collate "C" check (length(sha256_client) = 64),  -- null: still awaited
    sha256_server        text collate "C" check (length(sha256_server) = 64),
    integrity_status     text not null default 'pending'
                         check (integrity_status in ('pending', 'awaiting', 'valid', 'invalid', 'error')),
    integrity_checked_at timestamptz,
    integrity_error      text,
    created_at           timestamptz not null default now(),
    updated_at           timestamptz not null default now(),
    constraint files_version unique nulls not distinct (bucket, key, version_id),
    constraint files_belongs_to_one check (
        case file_type
            when 'source_dataset' then atlas_id is null
            when 'integrated_object' then atlas_id is not null and source_study_id is null
            when 'ingest_manifest' then atlas_id is not null and source_study_id is null
            else false
        end
    )
);
create unique index files_latest on hat.files (bucket, key) where is_latest;  -- never two
create index files_integrity_status on hat.files (integrity_status);
create index files_sha256_client on hat.files using hash (sha256_client);  -- digests are never compared but for equality
create index files_atlas on hat.files (atlas_id) where atlas_id is not null;
create index files_source_study on hat.files (source_study_id) where source_study_id is not null;

-- What is known to be gone, so that an event that comes late does not bring it back; and delete markers, which are versions but
-- no files: while one is the latest, no file of its key is.
create table hat.removals (
    bucket     text collate "C" not null,
    key        text collate "C" not null,
    version_id text collate "C",
    sequencer  text collate "C" not null,
    is_marker  boolean not null,
    event_time timestamptz not null,
    constraint removals_version unique nulls not distinct (bucket, key, version_id)
);

-- Messages that were taken in: one that comes again changes nothing.
create table hat.messages (
    topic       text not null,
    message_id  uuid not null,
    received_at timestamptz not null default now(),
    primary key (topic, message_id)
);
create index messages_received on hat.messages (received_at);
