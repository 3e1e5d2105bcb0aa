-- The versioned catalog: written by catalog/. One repository for each project, named by the project's public id.

-- Commits are numbered as they are made, so a commit's number is larger than its parents'. Number 0 is the beginning of every
-- repository, where nothing is: it has no row.
create sequence catalog_commit_numbers;
create sequence catalog_line_numbers;

create table catalog_repositories (
    name           text primary key,
    default_branch text not null,
    created_at     timestamptz not null default now()
);

-- The row is the lock for everything that happens to the reference.
create table catalog_references (
    repository text not null references catalog_repositories (name),
    name       text not null collate "C",
    type       text not null check (type in ('BRANCH', 'TAG')),
    hash       text not null,                                        -- of its newest commit, the head
    commit     bigint not null,                                      -- the head's number
    line       bigint,                                               -- the head's line; null at the beginning
    owned      boolean not null default false,                       -- whether its next commit goes on with this line
    primary key (repository, name)
);

-- A line is a run of commits that one branch made, one after another. What came before its first commit is in other lines:
-- `lines` are they, the nearest first, each up to the commit `upto`. Lines never change, so whether one commit comes after
-- another is seen from two rows, however long the history is.
create table catalog_lines (
    id    bigint primary key,
    lines bigint[] not null,
    upto  bigint[] not null,
    reach integer not null                                           -- in how many of them contents are to be looked for
);

create table catalog_commits (
    line       bigint not null,
    number     bigint not null,
    repository text not null,
    hash       text not null,
    depth      bigint not null,                                      -- how many commits there are up to it
    parents    text[] not null,                                      -- hashes: what it was made on, what it merged
    meta       text not null,                                        -- JSON
    operations text not null,                                        -- JSON
    keys       text[] not null,                                      -- that its operations change
    primary key (line, number)
);
create unique index catalog_commits_hash on catalog_commits (repository, hash);

-- Which line was merged into which, where, up to which commit.
create table catalog_merges (
    line        bigint not null,
    number      bigint not null,
    from_line   bigint not null,
    from_number bigint not null,
    primary key (line, number)
);

-- What a key has from a commit on. The newest row of a key at or before a commit is found in one step for each line.
create table catalog_contents (
    line       bigint not null,
    key        text not null collate "C",                            -- its elements, joined by U+0001
    number     bigint not null,                                      -- of the commit
    type       text not null,
    content_id text not null,
    content    text,                                                 -- JSON; null if it was removed
    primary key (line, key, number)
);

-- Which object of a bucket a commit's table names: as it was then.
create table catalog_objects (
    repository   text not null,
    commit_hash  text not null,
    content_key  text not null collate "C",
    event        text not null,                                      -- the id of the event that tells of the table
    bucket       text not null,
    bucket_id    text not null,
    object_key   text not null collate "C",
    version_id   text not null,
    etag         text not null,
    modified_at  timestamptz not null,                               -- the object's change is its first one from here on
    primary key (repository, commit_hash, content_key)
);
create index catalog_objects_object on catalog_objects (bucket_id, object_key);

-- Who wants the catalog's events by the durable path. Numbers are those of rules: a change names both in one list.
create table catalog_subscriptions (
    rule        bigint primary key default nextval('bucket_eventing_configs_rule_seq'),
    project     text not null,                                       -- public id
    name        text not null,
    destination text not null,
    lane        bigint references lanes (id),
    types       text[],
    filter      text,
    format      text,
    created_at  timestamptz not null default now(),
    unique (project, name)
);

alter table changes add column catalog text;                         -- the event, as JSON, where a catalog has changed

alter table api_keys add column roles text[] not null default '{}';  -- of who has the key, for filters of the catalog's events
