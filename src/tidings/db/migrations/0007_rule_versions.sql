-- What every rule said, and when: written by the database itself, so that nothing that changes a rule can forget it,
-- not even a bucket that is deleted with its rules.

alter table bucket_eventing_configs
    add column since bigint not null default 0;                      -- the bucket's config when it was made: older changes
                                                                     -- are not its affair
create table rule_versions (
    rule          bigint not null,
    project       text not null,                                     -- public id
    bucket        text not null,
    bucket_id     text not null,
    config        bigint not null,                                   -- the bucket's, from which on the rule said this
    config_id     text not null,
    topic_name    text not null,
    events        text[] not null,
    filter_prefix text,
    filter_suffix text,
    began_at      timestamptz not null default now(),
    ended_at      timestamptz,                                       -- null while it is the rule's newest
    primary key (rule, config)
);

create function rule_version() returns trigger language plpgsql as $$
begin
    if tg_op = 'UPDATE' and (new.events, new.filter_prefix, new.filter_suffix) is not distinct from
                            (old.events, old.filter_prefix, old.filter_suffix) then
        return null;
    end if;
    if tg_op <> 'INSERT' then
        update rule_versions set ended_at = now() where rule = old.rule and ended_at is null;
    end if;
    if tg_op <> 'DELETE' then
        insert into rule_versions (rule, project, bucket, bucket_id, config, config_id, topic_name, events, filter_prefix,
                                   filter_suffix)
        select new.rule, p.public_id, b.name, b.id, b.config, new.config_id, new.topic_name, new.events, new.filter_prefix,
               new.filter_suffix
        from bucket_metainfos b join projects p on p.id = b.project_id
        where b.project_id = new.project_id and b.name = new.bucket_name
        on conflict (rule, config) do update
            set events = excluded.events, filter_prefix = excluded.filter_prefix, filter_suffix = excluded.filter_suffix,
                ended_at = null;
    end if;
    return null;
end
$$;

create trigger rule_version after insert or update or delete on bucket_eventing_configs
    for each row execute function rule_version();

insert into rule_versions (rule, project, bucket, bucket_id, config, config_id, topic_name, events, filter_prefix, filter_suffix,
                           began_at)
select c.rule, p.public_id, b.name, b.id, b.config, c.config_id, c.topic_name, c.events, c.filter_prefix, c.filter_suffix,
       c.updated_at
from bucket_eventing_configs c
join bucket_metainfos b on b.project_id = c.project_id and b.name = c.bucket_name
join projects p on p.id = b.project_id;

-- The stream makes its plan again when the rules have changed. A statement that has changed nothing is none of its business.
drop trigger rules_changed on bucket_eventing_configs;
create or replace function rules_changed() returns trigger language plpgsql as $$
begin
    if exists (select from touched) then
        update rules_version set version = version + 1;
    end if;
    return null;
end
$$;
create trigger rules_inserted after insert on bucket_eventing_configs
    referencing new table as touched for each statement execute function rules_changed();
create trigger rules_updated after update on bucket_eventing_configs
    referencing new table as touched for each statement execute function rules_changed();
create trigger rules_deleted after delete on bucket_eventing_configs
    referencing old table as touched for each statement execute function rules_changed();
