-- Administrative acts and changes of configuration: who did what, from where, and how it ended. Rows are only ever added.
create table audit_log (
    id bigint generated always as identity primary key,
    at timestamptz not null default clock_timestamp(),
    project text,           -- public id; null where an act concerns no project, or one that was not found
    actor text not null,    -- an access key id; a user of the operating system; 'link' for who followed one
    source text not null,   -- an address; or a host and the command
    action text not null,   -- s3:CreateBucket, sns:Subscribe, access create
    target text not null,   -- a bucket, a topic, a key's id
    outcome text not null,  -- ok, or the code that it was refused with
    request text not null   -- the id that the answer had; empty for a command
);
create index audit_log_of_project on audit_log (project, id);

create function refuse_audit_change() returns trigger language plpgsql as $$
begin
    raise exception 'the audit log is append-only: % is refused', lower(tg_op);
end $$;

create trigger append_only before update or delete or truncate on audit_log
    for each statement execute function refuse_audit_change();
