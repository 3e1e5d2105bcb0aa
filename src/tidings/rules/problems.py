"""Everything that is wrong with a configuration, told at once: nobody should mend one thing to hear of the next."""

from __future__ import annotations

from collections.abc import Sequence

from tidings.errors import CallerError

MOST_NAMED = 10
"""A document can be wrong in a thousand places; an answer has to stay readable."""


def refuse(problems: Sequence[CallerError]) -> None:
    """Raise what was found, if anything: one problem as it is, several as one answer that names each.

    The first decides the code: put a document that cannot be read properly before values that are not allowed.
    """
    if not problems:
        return
    if len(problems) == 1:
        raise problems[0]
    named = [f"({number}) {problem.message}" for number, problem in enumerate(problems[:MOST_NAMED], start=1)]
    if len(problems) > MOST_NAMED:
        named.append(f"and {len(problems) - MOST_NAMED} more.")
    raise CallerError(problems[0].code, f"{len(problems)} problems: {' '.join(named)}")
