"""Numbers in queries and headers, where int() would let in signs, spaces, underscores and other scripts' digits."""

from __future__ import annotations

import re
from collections.abc import Mapping

from tidings.errors import CallerError

_NUMBER = re.compile(r"[0-9]{1,18}")


def between(query: Mapping[str, str], name: str, lowest: int, highest: int, otherwise: int) -> int:
    """The parameter `name`, or `otherwise` if it is missing or empty."""
    value = query.get(name)
    if not value:
        return otherwise
    if not _NUMBER.fullmatch(value) or not lowest <= int(value) <= highest:
        message = f"{name} is {value[:100]!r}: send a number from {lowest} to {highest}."
        raise CallerError("InvalidArgument", message, ArgumentName=name, ArgumentValue=value[:100])
    return int(value)
