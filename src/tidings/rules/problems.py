"""Everything that is wrong with a configuration, told at once: nobody should mend one thing to hear of the next."""

from __future__ import annotations

from collections.abc import Sequence

from tidings.errors import CallerError

MOST_NAMED = 10
"""A document can be wrong in a thousand places; an answer has to stay readable."""


def refuse(problems: Sequence[CallerError]) -> None:
    """Raise what was found, if anything: one problem as it is, several as one answer that names each.

    A document that cannot be read properly comes before values that are not allowed: MalformedXML decides the code.
    """
    if not problems:
        return
    if len(problems) == 1:
        raise problems[0]
    codes = {problem.code for problem in problems}
    code = "MalformedXML" if "MalformedXML" in codes else problems[0].code
    named = [f"({number}) {problem.message}" for number, problem in enumerate(problems[:MOST_NAMED], start=1)]
    if len(problems) > MOST_NAMED:
        named.append(f"and {len(problems) - MOST_NAMED} more.")
    raise CallerError(code, f"{len(problems)} problems: {' '.join(named)}")
