-- Where the catalog's events go: read by delivery/, like the rules of buckets.

create index catalog_subscriptions_destination on catalog_subscriptions (destination);

create or replace view routes as
select c.rule as source, c.rule, c.lane from bucket_eventing_configs c where c.lane is not null
union all
select c.rule, c.rule, s.lane from bucket_eventing_configs c join subscriptions s on s.topic = c.topic_name
where s.lane is not null
union all
select c.rule, c.rule, c.lane from catalog_subscriptions c where c.lane is not null
union all
select c.rule, c.rule, s.lane from catalog_subscriptions c join subscriptions s on s.topic = c.destination
where s.lane is not null
union all
select s.source, r.rule, r.lane from replays r cross join unnest(r.sources) as s(source) where r.ended_at is null;

-- What a rule asks for, of buckets and of catalogs alike: the names of events as the matcher knows them, and a catalog's filter.
create view rule_terms as
select rule, lane, config_id as name, events, filter_prefix as prefix, filter_suffix as suffix, null::text as filter,
       null::text as format
from bucket_eventing_configs
union all
select rule, lane, name, (select array_agg('s3:nessie:' || type) from unnest(coalesce(types, '{*}')) type), null, null, filter,
       case format when 'cloudevents' then 'nessie_cloudevents' else 'nessie' end
from catalog_subscriptions;

create trigger catalog_subscriptions_changed after insert or update or delete on catalog_subscriptions
    for each statement execute function routes_changed();
