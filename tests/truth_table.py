"""Which rules want which changes: one table for the Python matcher, the Spark columns and the SQL of the write path.

`random_rows` makes further rows, without an answer, for the three to agree on.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import NamedTuple

import pytest

from tidings.events import names
from tidings.events.keys import form_encoded
from tidings.events.profiles import AWS

PUT, POST, COPY, MULTIPART, DELETE, MARKER = names.NAMES
EVERYTHING = ("s3:ObjectCreated:*", "s3:ObjectRemoved:*")


class Row(NamedTuple):
    """A rule, a change, and whether the rule wants it."""

    key: str
    prefix: str = ""
    suffix: str = ""
    expected: bool = False
    event: str = PUT
    events: tuple[str, ...] = EVERYTHING

    @property
    def question(self) -> str:
        return f"{self.event} {self.key} / {self.prefix} … {self.suffix} / {' '.join(self.events)}"


def _rows(answer: bool, *rows: tuple[str, ...]) -> list[Row]:
    """Each row is a key, and then a prefix and a suffix where they are set."""
    filled = ((*row, "", "")[:3] for row in rows)
    return [Row(key, prefix, suffix, answer) for key, prefix, suffix in filled]


SEED = [
    *_rows(True, ("logs/2025.txt", "logs/"), ("logs/archive/old.log", "logs/")),
    *_rows(False, ("Logs/file.txt", "logs/"), ("archive/logs/file.txt", "logs/"), ("mylogs.txt", "logs/")),
    *_rows(True, ("photo.jpg", "", ".jpg"), ("dir/image.jpg", "", ".jpg")),
    *_rows(False, ("photo.JPG", "", ".jpg"), ("photo.jpeg", "", ".jpg"), ("image.jpg.bak", "", ".jpg")),
    *_rows(True, ("logs/file.txt", "logs/", ".txt"), ("logs/dir/doc.txt", "logs/", ".txt")),
    *_rows(
        False,
        ("logs/file.TXT", "logs/", ".txt"),
        ("logs/file.log", "logs/", ".txt"),
        ("data/file.txt", "logs/", ".txt"),
    ),
]
"""Seed 000, "Filtering Rules": every example that it gives."""

LITERAL = [
    # no filter, and filters as long as the key or longer
    *_rows(True, ("anything",), ("a b+c%d",), ("logs/", "logs/"), (".jpg", "", ".jpg"), ("a", "a", "a")),
    *_rows(True, ("aba", "ab", "ba")),
    *_rows(False, ("logs", "logs/"), ("jpg", "", ".jpg"), ("ab", "a", "ab.")),
    # what is a pattern elsewhere is text here
    *_rows(True, ("a*b", "a*"), ("a?b", "a?", "?b"), ("a_b", "a_b"), ("50%", "", "%"), ("a\\b", "a\\"), ("[a]", "[a]")),
    *_rows(False, ("axb", "a*"), ("axb", "a?"), ("axb", "a_b"), ("50x", "50%"), ("a", "[a]"), ("axxb", "a%b")),
    *_rows(False, ("logs/a", "*"), ("logs/a", "", "*")),
    # letters beyond ASCII are compared as they are: no folding of case, no normal form
    *_rows(True, ("žluť/kůň.png", "žluť/", "ůň.png"), ("写真/猫.jpg", "写真/", "猫.jpg"), ("🦊🦊", "🦊", "🦊")),
    *_rows(False, ("Žluť/a", "žluť/"), ("e\u0301.txt", "é"), ("é.txt", "e\u0301"), ("STRASSE", "", "straße")),
    *_rows(False, ("🦊", "🐺"), ("🦊", "🦊🦊")),
]

ENCODED = [
    # a space is `+` in the encoded key, and a plus is `%2B`
    *_rows(True, ("my file.txt", "my file"), ("my file.txt", "my+file"), ("a b", "", "+b"), ("my file", "my+", "+file")),
    *_rows(True, ("my+file.txt", "my+file"), ("my+file.txt", "my%2Bfile"), ("a+b", "", "%2Bb")),
    *_rows(False, ("my+file.txt", "my file"), ("my file.txt", "my%20file"), ("my file.txt", "my%2Bfile")),
    # `%` itself, and keys that look encoded
    *_rows(True, ("100%.txt", "100%25"), ("100%.txt", "", "%.txt"), ("a%2Bb", "a%2B"), ("a%2Bb", "a%252B")),
    *_rows(False, ("a+b", "a%252B"), ("a%20b", "a b"), ("a%2Bb", "a+b")),
    # `*` and `?` are encoded; `~`, `-`, `_`, `.` and `/` are not
    *_rows(True, ("a*b", "a%2A"), ("a?b", "", "%3Fb"), ("~a/b-c_d.e", "~a/b-c_d.e"), ("a=b&c", "a%3Db%26c")),
    *_rows(False, ("a/b", "a%2Fb"), ("~a", "%7Ea"), ("a*b", "a%2a")),
    # UTF-8 underneath, in upper-case digits
    *_rows(True, ("žluť", "%C5%BE"), ("a/猫.jpg", "a/%E7%8C%AB"), ("🦊", "", "%8A"), ("é e", "%C3%A9+")),
    *_rows(False, ("žluť", "%c5%be"), ("猫", "%E7%8C%AC")),
    # one form of the key has to satisfy both halves
    *_rows(True, ("a b/c d", "a b", "c d"), ("a b/c d", "a+b", "c+d"), ("plain/c d", "plain/", "c+d")),
    *_rows(False, ("a b/c d", "a b", "c+d"), ("a b/c d", "a+b", "c d"), ("ž/a b", "ž", "a+b")),
]

ONLY_LITERAL = [
    # the same questions where the encoded form of a key does not count (profile storj): space and plus
    *_rows(True, ("my file.txt", "my file"), ("my+file.txt", "my+file"), ("a b", "", " b"), ("a+b", "", "+b")),
    *_rows(False, ("my file.txt", "my+file"), ("a b", "", "+b"), ("my file", "my+", "+file")),
    *_rows(False, ("my+file.txt", "my%2Bfile"), ("a+b", "", "%2Bb"), ("my+file.txt", "my file")),
    # the percent sign, and keys that look encoded
    *_rows(True, ("100%.txt", "", "%.txt"), ("100%.txt", "100%"), ("a%2Bb", "a%2B"), ("a%20b", "a%20")),
    *_rows(False, ("100%.txt", "100%25"), ("a%2Bb", "a%252B"), ("a%20b", "a b"), ("a%2Bb", "a+b")),
    # star and question mark
    *_rows(True, ("a*b", "a*"), ("a?b", "", "?b"), ("~a/b-c_d.e", "~a/b-c_d.e"), ("a=b&c", "a=b&c")),
    *_rows(False, ("a*b", "a%2A"), ("a?b", "", "%3Fb"), ("a=b&c", "a%3Db%26c")),
    # letters beyond ASCII
    *_rows(True, ("žluť", "ž"), ("a/猫.jpg", "a/猫"), ("🦊", "", "🦊")),
    *_rows(False, ("žluť", "%C5%BE"), ("a/猫.jpg", "a/%E7%8C%AB"), ("🦊", "", "%8A"), ("é e", "%C3%A9+")),
    *_rows(True, ("a b/c d", "a b", "c d")),
    *_rows(False, ("a b/c d", "a+b", "c+d"), ("plain/c d", "plain/", "c+d"), ("a b/c d", "a b", "c+d")),
]

EVENTS = [
    Row("k", event=PUT, events=("s3:ObjectCreated:Put",), expected=True),
    Row("k", event=COPY, events=("s3:ObjectCreated:Put",)),
    Row("k", event=DELETE, events=("s3:ObjectCreated:Put", "s3:ObjectRemoved:Delete"), expected=True),
    Row("k", event=MARKER, events=("s3:ObjectCreated:Put", "s3:ObjectRemoved:Delete")),
    Row("k", event=PUT, events=("s3:ObjectCreated:*",), expected=True),
    Row("k", event=COPY, events=("s3:ObjectCreated:*",), expected=True),
    Row("k", event=DELETE, events=("s3:ObjectCreated:*",)),
    Row("k", event=DELETE, events=("s3:ObjectRemoved:*",), expected=True),
    Row("k", event=MARKER, events=("s3:ObjectRemoved:*",), expected=True),
    Row("k", event=PUT, events=("s3:ObjectRemoved:*",)),
    Row("k", event=PUT, events=EVERYTHING, expected=True),
    Row("k", event="ObjectCreated:Unheard", events=("s3:ObjectCreated:*",), expected=True),
    Row("k", event="ObjectCreatedElsewhere:Put", events=EVERYTHING),
    Row("k", event="ObjectTagging:Put", events=("s3:ObjectCreated:Put", *EVERYTHING)),
    Row("logs/a", "logs/", event=COPY, events=("s3:ObjectRemoved:*",)),
    Row("data/a", "logs/", event=PUT, events=("s3:ObjectCreated:Put",)),
    Row("k", event=POST, events=("s3:ObjectCreated:Put",)),
    Row("k", event=POST, events=("s3:ObjectCreated:Post",), expected=True),
    Row("k", event=MULTIPART, events=("s3:ObjectCreated:*",), expected=True),
    Row("k", event=MULTIPART, events=("s3:ObjectCreated:Put", "s3:ObjectCreated:Copy")),
]

TABLES = {False: [*SEED, *LITERAL, *ENCODED, *EVENTS], True: [*SEED, *LITERAL, *ONLY_LITERAL, *EVENTS]}
"""By whether only the literal key counts: not in the profile aws, and in the profile storj."""
QUESTIONS = [pytest.param(row, literal, id=f"{row.question} {literal}") for literal, rows in TABLES.items() for row in rows]

_PIECES = [
    "a",
    "b",
    "A",
    "log",
    "/",
    ".",
    " ",
    "+",
    "%",
    "%20",
    "%2B",
    "*",
    "?",
    "~",
    "_",
    "\\",
    "&",
    "é",
    "e\u0301",
    "猫",
    "🦊",
]
_FURTHER = ["", "a", "%", "+", "🦊", "\u0301"]


def random_rows(seed: int, count: int) -> Iterator[Row]:
    """Rows whose answer is not known. Filters are cut from the key, or its encoded form, so that many of them match."""
    dice = random.Random(seed)
    for _ in range(count):
        key = "".join(dice.choices(_PIECES, k=dice.randint(1, 6)))
        prefix, suffix = (_filter(dice, key, start) for start in (True, False))
        events = tuple(dice.sample(sorted(AWS.subscribable), dice.randint(1, 4)))
        yield Row(key, prefix, suffix, event=dice.choice(names.NAMES), events=events)


def _filter(dice: random.Random, key: str, start: bool) -> str:
    if dice.random() < 0.3:
        return ""
    form = dice.choice([key, form_encoded(key)])
    cut = dice.randint(0, len(form))
    value = form[:cut] if start else form[cut:]
    if dice.random() < 0.2:
        value = value.swapcase() + dice.choice(_FURTHER)
    return value
