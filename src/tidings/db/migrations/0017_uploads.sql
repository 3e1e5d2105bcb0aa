-- Which uploads there are (seed 004, "Schema"): written by consumers/uploads/, fed by events alone. `uploads` are multipart uploads.

create table upload_registry (
    organisation text not null collate "C",
    name         text not null collate "C",
    created_at   timestamptz not null,                               -- when its notification was processed, the last one
    primary key (organisation, name)
);
