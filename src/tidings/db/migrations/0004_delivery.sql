-- Lanes and their bookkeeping: written by delivery/.

alter table lanes add column slow boolean not null default false;    -- its destination answers later than a round waits

-- Who owns the stream shows that it lives; one that has stopped is replaced.
alter table stream add column alive_at timestamptz not null default now();

-- Tells the stream that its copy of the rules is old. A row, not a sequence: it changes when the rules do, not before.
create table rules_version (
    version bigint not null
);
insert into rules_version values (1);

create function rules_changed() returns trigger language plpgsql as $$
begin
    update rules_version set version = version + 1;
    return null;
end
$$;

create trigger rules_changed after insert or update or delete on bucket_eventing_configs
    for each statement execute function rules_changed();
