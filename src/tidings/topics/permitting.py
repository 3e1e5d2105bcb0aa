"""Who may do what, and how it is said that they may not: nobody learns whether another project has a topic."""

from __future__ import annotations

import time
from typing import Any

from psycopg import AsyncConnection

from tidings.access.keys import Principal
from tidings.errors import CallerError
from tidings.topics import statements
from tidings.topics.model import invalid


def require(caller: Principal, *actions: str) -> None:
    if not any(caller.grant.allows_beside_buckets(action, time.time()) for action in actions):
        raise CallerError("AuthorizationError", f"The key does not allow {' or '.join(actions)}.")


async def granted(connection: AsyncConnection[Any], project: str, topic: str, action: str) -> bool:
    """Whether the owner of a topic lets another project do this."""
    return bool((await connection.execute(statements.GRANTED, [topic, project, action])).rowcount)


def denied(operation: str, arn: str) -> CallerError:
    return CallerError("AuthorizationError", f"This project is not authorized to perform SNS:{operation} on {arn[:400]}.")


def no_topic() -> CallerError:
    return CallerError("NotFound", "Topic does not exist")


def not_served(name: str) -> CallerError:
    return invalid(f"AttributeName: {name[:100]!r} cannot be set here")
