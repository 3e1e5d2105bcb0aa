-- Where changes go and what messages say, now that there are topics and queues: read by delivery/.

create index bucket_eventing_configs_topic on bucket_eventing_configs (topic_name);

create or replace view routes as
select c.rule as source, c.rule, c.lane from bucket_eventing_configs c where c.lane is not null
union all
select c.rule, c.rule, s.lane from bucket_eventing_configs c join subscriptions s on s.topic = c.topic_name
where s.lane is not null
union all
select s.source, r.rule, r.lane from replays r cross join unnest(r.sources) as s(source) where r.ended_at is null;

-- A subscription keeps its lane whether a rule leads to its topic or not.
create or replace view kept_lanes as select lane from subscriptions where lane is not null;

-- A topic or a queue chooses by its tag `event-format`. Headers: Kafka's, and those of an HTTP request without SNS's envelope.
create or replace view lane_formats as
select l.id as lane, coalesce(t.tags ->> 'event-format', q.tags ->> 'event-format') as format,
       split_part(l.destination, ':', 3) = 'kafka' or coalesce(s.raw and s.protocol <> 'sqs', false) as headers
from lanes l
left join subscriptions s on s.arn = l.destination
left join topics t on t.arn = s.topic
left join queues q on split_part(l.destination, ':', 3) = 'sqs'
    and (q.project, q.name) = (split_part(l.destination, ':', 5), split_part(l.destination, ':', 6));

create trigger queue_tags_changed after update of tags on queues
    for each row when (new.tags is distinct from old.tags) execute function routes_changed();
create trigger topic_tags_changed after update of tags on topics
    for each row when (new.tags is distinct from old.tags) execute function routes_changed();
create trigger raw_changed after update of raw on subscriptions
    for each row when (new.raw is distinct from old.raw) execute function routes_changed();
