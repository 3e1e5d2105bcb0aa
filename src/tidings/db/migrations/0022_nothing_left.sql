-- Tables whose old row versions, or statistics, hold secrets in clear from before 0020. When all migrations are applied, `migrate`
-- writes each of them anew. If it is killed in between, the next one goes on.
create table stale_tables (name text primary key);
insert into stale_tables
select unnest('{access_keys,api_keys,pg_statistic,revoked_tails,subscriptions}'::text[])
where exists (select from access_keys) or exists (select from api_keys) or exists (select from signing_keys)
   or exists (select from subscriptions);

-- Also where session_replication_role switches ordinary triggers off.
alter table audit_log enable always trigger append_only;
