"""The filters of listings: as much of CEL as Nessie's command makes of its options, and a little more.

    expression   any = all ("||" all)* ; all = one ("&&" one)* ; one = "!" one | "(" any ")" | comparison
    comparison   value [("==" | "!=" | "<" | "<=" | ">" | ">=") value | "in" "[" texts "]"]
    value        text | timestamp(value) | name.member | value.startsWith(text), .endsWith(text), .contains(text)

Anything else is refused with its place in the text.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from operator import eq, ge, gt, le, lt, ne
from typing import Any

from tidings.catalog.errors import CatalogError, bad_request

Values = Mapping[str, Mapping[str, str]]
"""What a filter can speak of: `{"commit": {"author": …}}`."""
Filter = Callable[[Values], bool]
_Value = Callable[[Values], Any]

_TOKEN = re.compile(r"""\s*(?:(?P<text>'[^'\\]*'|"[^"\\]*")|(?P<name>[A-Za-z_]\w*)|(?P<sign>\|\||&&|[=!<>]=|[<>!().,\[\]]))""")
_COMPARED: Mapping[str, Callable[[Any, Any], bool]] = {"==": eq, "!=": ne, "<": lt, "<=": le, ">": gt, ">=": ge}
_TESTS: Mapping[str, Callable[[str, str], bool]] = {
    "startsWith": str.startswith,
    "endsWith": str.endswith,
    "contains": str.__contains__,
}
_MAX_LENGTH, _MAX_DEPTH = 4096, 50


def parse(text: str, known: Mapping[str, frozenset[str]]) -> Filter:
    """`known` are the names that may be spoken of, each with its members."""
    if len(text) > _MAX_LENGTH:
        raise bad_request(f"The filter is longer than {_MAX_LENGTH} characters.")
    return _Parser(text, known).parsed()


class _Parser:
    def __init__(self, text: str, known: Mapping[str, frozenset[str]]) -> None:
        self._text = text
        self._known = known
        self._place = 0
        self._depth = 0

    def parsed(self) -> Filter:
        found = self._any()
        if self._peek():
            raise self._problem("the end")
        return found

    def _any(self) -> Filter:
        self._depth += 1
        if self._depth > _MAX_DEPTH:
            raise bad_request(f"The filter is nested more than {_MAX_DEPTH} deep.")
        parts = [self._all()]
        while self._takes("||"):
            parts.append(self._all())
        self._depth -= 1
        return lambda values: any(part(values) for part in parts)

    def _all(self) -> Filter:
        parts = [self._one()]
        while self._takes("&&"):
            parts.append(self._one())
        return lambda values: all(part(values) for part in parts)

    def _one(self) -> Filter:
        if self._takes("!"):
            self._depth += 1
            if self._depth > _MAX_DEPTH:
                raise bad_request(f"The filter is nested more than {_MAX_DEPTH} deep.")
            negated = self._one()
            self._depth -= 1
            return lambda values: not negated(values)
        if self._takes("("):
            inner = self._any()
            self._needs(")")
            return inner
        return self._comparison()

    def _comparison(self) -> Filter:
        left, kind = self._value()
        sign = self._peek()
        if sign in _COMPARED:
            self._next()
            right, other = self._value()
            if kind is not other or kind is bool:
                raise self._problem(f"something to compare with a {kind.__name__}")
            compare = _COMPARED[sign]
            return lambda values: compare(left(values), right(values))
        if sign == "in" and kind is str:
            self._next()
            among = self._texts()
            return lambda values: left(values) in among
        if kind is not bool:
            raise self._problem("a comparison")
        return lambda values: bool(left(values))

    def _value(self) -> tuple[_Value, type]:
        text = self._next()
        if text[:1] in ("'", '"'):
            return _constant(text[1:-1]), str
        if text == "timestamp":
            self._needs("(")
            inner, kind = self._value()
            self._needs(")")
            if kind is not str:
                raise self._problem("a text in timestamp()")
            return lambda values: _moment(inner(values)), datetime
        members = self._known.get(text)
        if members is None:
            raise self._problem(f"{', '.join(sorted(self._known))} or a text", back=len(text))
        self._needs(".")
        member = self._next()
        if member not in members:
            raise self._problem(f"a member of {text}: {', '.join(sorted(members))}", back=len(member))
        return self._tested(lambda values: values[text].get(member, ""))

    def _tested(self, value: _Value) -> tuple[_Value, type]:
        if not self._takes("."):
            return value, str
        name = self._next()
        test = _TESTS.get(name)
        if test is None:
            raise self._problem(f"one of {', '.join(_TESTS)}", back=len(name))
        self._needs("(")
        wanted = self._text_constant()
        self._needs(")")
        return lambda values: test(value(values), wanted), bool

    def _texts(self) -> list[str]:
        self._needs("[")
        found = [] if self._peek() == "]" else [self._text_constant()]
        while self._takes(","):
            found.append(self._text_constant())
        self._needs("]")
        return found

    def _text_constant(self) -> str:
        text = self._next()
        if text[:1] not in ("'", '"'):
            raise self._problem("a text in quotes", back=len(text))
        return text[1:-1]

    def _peek(self) -> str:
        match = _TOKEN.match(self._text, self._place)
        if match is None:
            if self._text[self._place :].strip():
                raise self._problem("something that is served here")
            return ""
        return match[match.lastgroup or 0]

    def _next(self) -> str:
        token = self._peek()
        match = _TOKEN.match(self._text, self._place)
        if match is None:
            raise self._problem("more")
        self._place = match.end()
        return token

    def _takes(self, token: str) -> bool:
        if self._peek() != token:
            return False
        self._next()
        return True

    def _needs(self, token: str) -> None:
        if not self._takes(token):
            raise self._problem(repr(token))

    def _problem(self, expected: str, back: int = 0) -> CatalogError:
        place = self._place - back
        return bad_request(
            f"The filter cannot be read at position {place + 1}, at {self._text[place : place + 30]!r}: expected {expected}."
        )


def _constant(text: str) -> _Value:
    return lambda _: text


def _moment(text: str) -> datetime:
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        raise bad_request(f"timestamp() cannot read {text[:100]!r}: write it as 2026-01-31T12:00:00Z.") from None
    return found if found.tzinfo else found.replace(tzinfo=UTC)
