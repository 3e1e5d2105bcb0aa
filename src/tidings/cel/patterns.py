"""What a regular expression may cost, from its text alone. RE2 has no exponential time, but it has costs.

RE2 compiles a pattern each time that it is asked, and then reads the text once. What it keeps while it reads is a set of
positions in the pattern. Each set that it has not met before costs time in proportion to the pattern; how many there can be
doubles with each position at which several characters fit, and with each repetition: `[ab]*a[ab]{100}c` meets a new one at each
character. No more than the text has characters, of course.

To find a set, RE2 walks every instruction between two positions: both ends of each group, each alternative and each loop. When
the sets need more memory than RE2 has for them, it stops keeping them and walks all instructions again for each character.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache


@dataclass(frozen=True, slots=True)
class Pattern:
    """`positions` are characters that it waits for, `choices` are what makes sets of them many.

    `instructions` is what RE2 compiles. `steps` is what it walks at most to get from one set to the next: the positions,
    and what takes no character (ends of groups, alternatives, loops, assertions).
    """

    positions: int = 0
    choices: int = 0
    instructions: int = 0
    steps: int = 0

    def __add__(self, other: Pattern) -> Pattern:
        return Pattern(
            self.positions + other.positions,
            self.choices + other.choices,
            self.instructions + other.instructions,
            self.steps + other.steps,
        )

    def times(self, number: int, choices: int = 0) -> Pattern:
        return Pattern(
            self.positions * number,
            self.choices * number + choices,
            (self.instructions + 2) * number,
            (self.steps + 1) * number,
        )

    def sets(self, length: int) -> int:
        """How many sets of positions a text of so many bytes can make it meet."""
        return min(length, max(1, self.positions) << min(self.choices, 60))


_WIDE = 16
"""Instructions for a class of characters beyond ASCII, which are several bytes each."""
_UNICODE = 1700
"""Those for a class of Unicode's, such as \\pL: it has hundreds of ranges."""

# In the order in which they are tried. A brace that is no repetition stands for itself.
_TOKEN = re.compile(
    r"""
    (?P<quoted>\\Q(?P<inside>.*?)(?:\\E|\Z)) |
    (?P<unicode>\\[pP](?:\{[^}]*\}|.)) |
    (?P<wide>\\[DWSCX]|\.) |
    (?P<narrow>\\[dws]) |
    (?P<empty>\\[bBAzZ]|[\^$]) |
    (?P<escaped>\\x\{[0-9a-fA-F]*\}|\\x..|\\[0-7]{1,3}|\\.) |
    (?P<set>\[\^?\]?(?:\[:\^?\w*:\]|\\[pPx]\{[^}]*\}|\\.|[^\]\\])*+\]) |  # never goes back: without its end it is a literal
    (?P<open>\((?:\?P?<\w*>|\?[a-zA-Z-]*[:)])?) |
    (?P<close>\)) |
    (?P<or>\|) |
    (?P<loop>[*+?]\??) |
    (?P<count>\{(?P<least>\d+)(?P<several>,(?P<most>\d*))?\}\??) |
    (?P<literal>.)
    """,
    re.VERBOSE | re.DOTALL,
)
_UNICODE_IN_SET = re.compile(r"\\[pP]")
_WIDE_IN_SET = re.compile(r"^\[\^|\\[DWS]|\[:\^|[^\x00-\x7f]|\\x\{")
_FOLDS = re.compile(r"\(\?[a-zA-Z]*i")


@lru_cache(maxsize=1000)
def read(pattern: str) -> Pattern:
    """What a pattern is made of. Whether it is right, RE2 says."""
    folds = 4 if _FOLDS.search(pattern) else 1  # a letter's other cases may have more bytes
    around: list[Pattern] = []
    before, last = Pattern(), Pattern()  # a repetition is one of the last piece
    for token in _TOKEN.finditer(pattern):
        kind = token.lastgroup
        if kind == "open" and not token[0].endswith(")"):
            around.append(before + last)
            before, last = Pattern(), Pattern()
        elif kind == "close":
            inside = before + last + Pattern(instructions=2, steps=2)
            before, last = around.pop() if around else Pattern(), inside
        elif kind in ("loop", "count"):
            last = _repeated(last, token)
        else:
            for piece in _pieces(token, folds):
                before, last = before + last, piece
    return sum(around, before + last)


def _repeated(last: Pattern, token: re.Match[str]) -> Pattern:
    if token.lastgroup == "loop":
        return last.times(1, choices=1)
    least = int(token["least"])
    most = int(token["most"]) if token["most"] else least + bool(token["several"])
    return last.times(max(1, most), choices=max(0, most - least) + bool(token["several"]))


def _pieces(token: re.Match[str], folds: int) -> Iterator[Pattern]:
    text = token[0]
    match token.lastgroup:
        case "quoted":
            yield from (_literal(each, folds) for each in token["inside"])
        case "unicode":
            yield Pattern(4, 1, _UNICODE, 8)
        case "wide":
            yield Pattern(2, 1, _WIDE, 3)
        case "narrow":
            yield Pattern(1, 1, 4, 1)
        case "set":
            yield _of_set(text, folds)
        case "or":
            yield Pattern(0, 1, 1, 1)
        case "empty" | "open":
            yield Pattern(0, 0, 1, 1)
        case _:
            yield _literal(text, folds)


def _literal(text: str, folds: int) -> Pattern:
    return Pattern(1, 0, folds * len(text.encode(errors="replace")), 1)


def _of_set(text: str, folds: int) -> Pattern:
    if named := len(_UNICODE_IN_SET.findall(text)):
        return Pattern(4, 1, _UNICODE * (named + 1) + len(text), 8)
    if _WIDE_IN_SET.search(text) or folds > 1:
        return Pattern(2, 1, _WIDE + 4 * len(text), 3)
    return Pattern(1, 1, len(text), 1 + len(text) // 4)
