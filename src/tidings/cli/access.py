"""`tidings access`: keys for the S3 API."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tidings.cli.acts import audited
from tidings.cli.connection import database
from tidings.cli.printing import AsJson, err, out, say
from tidings.errors import OperatorError

if TYPE_CHECKING:
    from tidings.access.api_keys import Access, Known
    from tidings.access.macaroons import Caveat

app = typer.Typer(help="Keys for the S3 API.", no_args_is_help=True)

Key = Annotated[str, typer.Argument(help="An API key, or the access key id that stands for it.")]
Actions = Annotated[list[str] | None, typer.Option("--action", help="Only this; again for more. Default: everything.")]
Buckets = Annotated[list[str] | None, typer.Option("--bucket", help="Only in this bucket; again for more.")]
Prefixes = Annotated[list[str] | None, typer.Option("--prefix", help="Only below BUCKET/PREFIX; again for more.")]
NotBefore = Annotated[datetime | None, typer.Option(help="Not before this time (UTC).")]
NotAfter = Annotated[datetime | None, typer.Option(help="Not after this time (UTC).")]


def _limit(
    actions: list[str] | None,
    buckets: list[str] | None,
    prefixes: list[str] | None,
    not_before: datetime | None,
    not_after: datetime | None,
) -> Caveat:
    from tidings.access.macaroons import Caveat

    def seconds(moment: datetime | None) -> int | None:
        return None if moment is None else int(moment.replace(tzinfo=moment.tzinfo or UTC).timestamp())

    pairs = [tuple(each.partition("/")[::2]) for each in prefixes or ()]
    return Caveat(
        frozenset(actions) if actions else None,
        frozenset(buckets) if buckets else None,
        frozenset((bucket, prefix) for bucket, prefix in pairs) if pairs else None,
        seconds(not_before),
        seconds(not_after),
    )


@app.command()
@audited("access create")
def create(
    project: Annotated[str, typer.Option(help="The project's public id, or its name.")],
    action: Actions = None,
    bucket: Buckets = None,
    prefix: Prefixes = None,
    not_before: NotBefore = None,
    not_after: NotAfter = None,
    role: Annotated[list[str] | None, typer.Option("--role", help="A role that catalog events tell; again for more.")] = None,
    as_json: AsJson = False,
) -> None:
    """Create a key for a project, in two forms: an API key, and an access key for S3. The secret is shown only now."""
    from tidings import audit
    from tidings.access import api_keys
    from tidings.access.permissions import ACTIONS
    from tidings.access.projects import find_project

    limit = _limit(None, bucket, prefix, not_before, not_after)
    with database() as connection:
        made = api_keys.create(connection, find_project(connection, project) or project, action or ACTIONS, limit, role or ())
        audit.about(made.access_key_id)
    _show(made, as_json)


@app.command()
@audited("access restrict")
def restrict(
    key: Key,
    action: Actions = None,
    bucket: Buckets = None,
    prefix: Prefixes = None,
    not_before: NotBefore = None,
    not_after: NotAfter = None,
    as_json: AsJson = False,
) -> None:
    """Make a narrower key of a key. When the key is revoked, so is what was made of it."""
    from tidings import audit
    from tidings.access import api_keys
    from tidings.access.macaroons import Caveat

    limit = _limit(action, bucket, prefix, not_before, not_after)
    if limit == Caveat():
        raise OperatorError("Say what the new key is limited to: --action, --bucket, --prefix, --not-before, --not-after.")
    with database() as connection:
        made = api_keys.restrict(connection, key, limit)
        audit.about(made.access_key_id, api_keys.inspect(connection, key).project)
    _show(made, as_json)


def _show(made: Access, as_json: bool) -> None:
    values = {"access_key_id": made.access_key_id, "secret_access_key": made.secret, "api_key": made.api_key}
    lines = f"access key id      {made.access_key_id}\nsecret access key  {made.secret}\napi key            {made.api_key}"
    say(as_json, values, lines)


@app.command()
def inspect(key: Key, as_json: AsJson = False) -> None:
    """Show what a key may do, and whether it was revoked."""
    from tidings.access import api_keys

    with database() as connection:
        known = api_keys.inspect(connection, key)
    say(as_json, _described(known), "\n".join(f"{name:14} {value}" for name, value in _described(known).items()))


@app.command()
@audited("access revoke")
def revoke(key: Key, as_json: AsJson = False) -> None:
    """End a key and every key that was made of it, within five seconds."""
    from tidings import audit
    from tidings.access import api_keys

    with database() as connection:
        known = api_keys.inspect(connection, key)
        api_keys.revoke(connection, key)
        audit.about(known.access_key_id or "an API key", known.project)
    say(
        as_json,
        {"revoked": True},
        "revoked, with every key that was made of it; known to all servers in five seconds",
    )


@app.command("list")
def list_(project: Annotated[str, typer.Option(help="The project's public id, or its name.")], as_json: AsJson = False) -> None:
    """List a project's keys and what they may do."""
    from tidings.access import api_keys
    from tidings.access.projects import find_project

    with database() as connection:
        found = [_described(each) for each in api_keys.listed(connection, find_project(connection, project) or project)]
    if as_json:
        out.print(json.dumps(found))
    for each in [] if as_json else found:
        limits = "; ".join(each["limits"]) or "no limits"
        out.print(f"{each['access_key_id']}  {', '.join(each['actions'])}; {limits}{'; REVOKED' if each['revoked'] else ''}")
    err.print(f"{len(found)} keys")


def _described(known: Known) -> dict[str, Any]:
    return {
        "access_key_id": known.access_key_id,
        "project": known.project,
        "actions": known.actions,
        "roles": known.roles,
        "limits": [caveat.encode().decode() for caveat in known.caveats],
        "revoked": known.revoked,
        "created_at": known.created_at.isoformat(),
    }
