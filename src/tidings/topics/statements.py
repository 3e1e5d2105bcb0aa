"""The statements over `topics`, `topic_grants` and `subscriptions`. One that was never confirmed ends with its token."""

from __future__ import annotations

from typing import LiteralString

COLUMNS: LiteralString = """
s.arn, s.topic, s.project, s.protocol, s.endpoint, s.raw, s.sealed_secrets, s.authenticated, s.lane is not null,
t.signature_version"""
"""As `model.Subscription` has them, its secrets still encrypted."""
LISTED: LiteralString = "s.left_at is null and (s.lane is not null or s.token_until > now())"

CREATE_TOPIC: LiteralString = """
insert into topics (arn, project, display_name, signature_version, tags)
select %(arn)s, %(project)s, %(display_name)s, %(signature_version)s, %(tags)s
where (select count(*) from topics where project = %(project)s) < %(most)s
on conflict do nothing returning arn"""

READ_TOPIC: LiteralString = "select arn, project, display_name, signature_version, tags from topics where arn = %s"

LIST_TOPICS: LiteralString = "select arn from topics where project = %s and arn > %s order by arn limit %s"

DELETE_TOPIC: LiteralString = "delete from topics where arn = %s"

COUNTS: LiteralString = f"""
select count(*) filter (where s.lane is not null), count(*) filter (where s.lane is null and {LISTED}),
       count(*) filter (where s.left_at is not null)
from subscriptions s where s.topic = %s"""

SET_DISPLAY_NAME: LiteralString = "update topics set display_name = %s where arn = %s"
SET_SIGNATURE_VERSION: LiteralString = "update topics set signature_version = %s where arn = %s"

TAG: LiteralString = """
update topics set tags = tags || %(tags)s::jsonb
where arn = %(arn)s and (select count(*) from jsonb_object_keys(tags || %(tags)s::jsonb)) <= %(most)s"""
UNTAG: LiteralString = "update topics set tags = tags - %s::text[] where arn = %s"

GRANTED: LiteralString = "select from topic_grants where topic = %s and project = %s and action = %s limit 1"
GRANTS: LiteralString = (
    "select label, array_agg(distinct project order by project), array_agg(distinct action order by action)"
    " from topic_grants where topic = %s group by label order by label"
)
GRANT: LiteralString = """
insert into topic_grants (topic, label, project, action)
select %(topic)s, %(label)s, project, action from unnest(%(projects)s::text[]) project, unnest(%(actions)s::text[]) action
where not exists (select from topic_grants where topic = %(topic)s and label = %(label)s)"""
REVOKE: LiteralString = "delete from topic_grants where topic = %s and label = %s"

FORGET_UNCONFIRMED: LiteralString = "delete from subscriptions where topic = %s and lane is null and token_until <= now()"

FIND: LiteralString = f"""
select {COLUMNS} from subscriptions s join topics t on t.arn = s.topic
where s.topic = %s and s.protocol = %s and s.endpoint = %s for update of s"""

COUNT: LiteralString = "select count(*) from subscriptions where topic = %s"

SUBSCRIBE: LiteralString = """
insert into subscriptions
    (arn, topic, project, protocol, endpoint, raw, sealed_secrets, secret_count, token, token_until, lane)
values (%(arn)s, %(topic)s, %(project)s, %(protocol)s, %(endpoint)s, %(raw)s, %(secrets)s, %(secret_count)s, %(token)s,
        now() + make_interval(secs => %(seconds)s), %(lane)s)"""

ASK_AGAIN: LiteralString = """
update subscriptions set token = %(token)s, token_until = now() + make_interval(secs => %(seconds)s), left_at = null,
                         project = %(project)s, raw = %(raw)s, sealed_secrets = %(secrets)s, secret_count = %(secret_count)s
where arn = %(arn)s"""

NEW_LANE: LiteralString = """
insert into lanes (project, destination, peer, state, win, seq, began_win, began_seq)
select %(owner)s, %(arn)s, %(endpoint)s, 'behind', s.win, s.seq, s.win, s.seq from stream s where s.name = 'main'
returning id"""
"""It begins where the stream is, and that is kept: what happened before is not for this subscriber. Its peer is the endpoint,
so that several subscriptions of one that is dead share a probe."""

FIND_BY_TOKEN: LiteralString = """
select s.arn, s.lane is not null, t.project, s.endpoint from subscriptions s join topics t on t.arn = s.topic
where s.topic = %s and s.token = %s and s.token_until > now() for update of s"""  # noqa: S105 a statement

CONFIRM: LiteralString = (
    "update subscriptions set lane = %(lane)s, authenticated = %(authenticated)s, left_at = null where arn = %(arn)s"
)

READ_SUBSCRIPTION: LiteralString = f"""
select {COLUMNS} from subscriptions s join topics t on t.arn = s.topic where s.arn = %s and {LISTED}"""

LIST_SUBSCRIPTIONS: LiteralString = f"""
select {COLUMNS} from subscriptions s join topics t on t.arn = s.topic
where s.project = %s and s.arn > %s and {LISTED} order by s.arn limit %s"""

LIST_BY_TOPIC: LiteralString = f"""
select {COLUMNS} from subscriptions s join topics t on t.arn = s.topic
where s.topic = %s and s.arn > %s and {LISTED} order by s.arn limit %s"""

UNSUBSCRIBE: LiteralString = f"""
delete from subscriptions s using topics t
where t.arn = s.topic and s.arn = %s and s.lane is not null returning {COLUMNS}"""

SET_RAW: LiteralString = "update subscriptions set raw = %s where arn = %s"
SET_SECRETS: LiteralString = "update subscriptions set sealed_secrets = %s, secret_count = %s where arn = %s"

CONFIRMED: LiteralString = f"""
select {COLUMNS} from subscriptions s join topics t on t.arn = s.topic where s.arn = any(%s) and s.lane is not null"""

CONFIRMED_OF_TOPIC: LiteralString = "select arn from subscriptions where topic = %s and lane is not null order by arn"
