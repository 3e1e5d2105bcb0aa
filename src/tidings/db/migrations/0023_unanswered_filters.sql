-- Filters of subscriptions to a catalog that had no answer for events: how often, why the last time, and when.
create table unanswered_filters (
    rule   bigint primary key references catalog_subscriptions (rule) on delete cascade,
    times  bigint not null,
    reason text not null,
    at     timestamptz not null
);
