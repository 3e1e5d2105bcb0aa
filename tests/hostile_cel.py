"""Hostile filters, each a way to make CEL take long or build much; and what becomes of a process that evaluates them.

    .venv/bin/python tests/hostile_cel.py SEED

registers them all, evaluates those that are taken over the largest events, and prints what that took, as JSON.
"""

from __future__ import annotations

import json
import random
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

from tidings.cel import variables
from tidings.cel.expression import Expression, ExpressionFailed
from tidings.delivery import cel_batches
from tidings.errors import ExpressionMistake

SEED = 20261118
NUMBER = 470


def numbers(count: int) -> str:
    return f"[{','.join(map(str, range(1, count + 1)))}]"


def _text_in_loops(levels: int, count: int) -> str:
    inner = "+".join(["message"] * 10)
    for variable in "cba"[3 - levels :]:
        inner = f"{numbers(count)}.map({variable}, {inner})"
    return f"{inner}.size() == 0"


FOUND = {177: _text_in_loops(2, 14), 225: _text_in_loops(2, 22), 292: _text_in_loops(3, 22)}
"""The three of the audit, by their lengths: about 0.7 GB, 1.6 GB, and more than there is."""


def quoted(text: str) -> str:
    return json.dumps(text)


LETTERS = r"\pL*\pN"
BRACED = r"\p{a}"
QUOTED = r"\Qa"
MISSING = "{'a': true}[message]"


def doubled(text: str, times: int) -> str:
    for _ in range(min(times, 9)):  # more has too many characters
        text = f"({text} + {text})"
    return text


def nested(levels: int, count: int, inner: str, macro: str = "map") -> str:
    for level in range(levels):
        inner = f"{numbers(count)}.{macro}(v{level}, {inner})"
    return inner


# Families: the larger the number, the dearer. Some of each are taken, so that what is taken is close to what is not.
_FAMILIES: dict[str, Callable[[int], str]] = {
    "text in a loop": lambda n: f"{nested(1, n, 'message + message')}.size() == 0",
    "text in two loops": lambda n: f"{nested(2, n, 'message + author')}.size() == 0",
    "numbers in loops": lambda n: f"{nested(2, 2 * n, '1')}.size() == 0",
    "three loops": lambda n: f"{nested(3, n, 'v0 == v1 || v1 == v2', 'exists')}",
    "text doubled": lambda n: f"{doubled('message', n)}.size() == 0",
    "text doubled in a loop": lambda n: f"roles.exists(r, {doubled('message', n)} == r)",
    "roles doubled": lambda n: f"{doubled('roles', n)}.size() == 0",
    "roles doubled and searched": lambda n: f"roles.exists(r, r in {doubled('roles', n)})",
    "roles doubled and mapped": lambda n: f"{doubled('roles', n)}.map(r, r).size() == 0",
    "roles doubled and compared": lambda n: f"{doubled('roles', n)} == {doubled('roles', n)} + ['a']",
    "a long list": lambda n: f"{numbers(30 * n)}.map(x, x).size() == 0",
    "a long list twice": lambda n: f"{numbers(12 * n)}.filter(x, true).map(x, message).exists(m, m == '')",
    "a long needle": lambda n: f"message.contains('{'a' * (100 * n)}b')",
    "a short needle": lambda n: f"roles.exists(r, message.contains('{'a' * n}b') || message.contains('b{'a' * n}'))",
    "a needle in a loop": lambda n: f"roles.exists(r, message.contains({' + '.join('r' * n)}))",
    "text in text": lambda n: f"{doubled('message', 1)}.contains({doubled('author', n)} + 'b')",
    "text in text in a loop": lambda n: f"{numbers(n)}.exists(x, message.contains(author + 'b'))",
    "to bytes and back": lambda n: f"{numbers(n)}.exists(x, string(bytes(message + string(x))) == '')",
    "a repetition": lambda n: f"message.matches('[ab]*a[ab]{{{n}}}c')",
    "a repetition of everything": lambda n: f"message.matches('(.*a.{{{n}}}){{2}}c')",
    "alternatives": lambda n: f"message.matches('(a|b|ab|ba|aa){{{10 * n}}}z')",
    "letters of any language": lambda n: f"message.matches({quoted(LETTERS * n)})",
    "letters in any case": lambda n: f"contentName.matches('(?i)\\\\pL{{{n}}}')",
    "a repetition of empty groups": lambda n: f"message.matches('[ab]*a(?:{'()' * 10 * n}[ab]){{6}}c')",
    "empty groups": lambda n: f"message.matches('[ab]*a(){{{30 * n}}}[ab]{{{n // 2}}}c')",
    "nested groups": lambda n: f"message.matches('[ab]*a(?:{'(' * 4 * n}[ab]{')' * 4 * n}){{{n // 2}}}c')",
    "a pattern in a loop": lambda n: f"contentKey.exists(k, k.matches('(a|b)*{'[a-f]' * n}'))",
    "a long pattern": lambda n: f"message.matches('{'(a?b+)*' * n}')",
    "a pattern of all characters": lambda n: f"roles.exists(r, r.matches('.{{{10 * n}}}'))",
    "a map": lambda n: f"{{{', '.join(f'{k}: message + message' for k in range(n))}}}.size() == 0",
    "a map in a loop": lambda n: f"roles.exists(r, {{{', '.join(f'{k}: r' for k in range(4 * n))}}} == {{}})",
    "keys of a map": lambda n: f"{{{', '.join(f'message + {k!r}: 1' for k in map(str, range(n)))}}}.map(k, k + k).size() == 0",
    "a choice": lambda n: f"(type == 'x' ? 'a' : {doubled('message', n)}).size() == 0",
    "a choice in a loop": lambda n: f"roles.map(r, r == 'x' ? r : {doubled('message', n)}).size() == 0",
    "has": lambda n: f"roles.exists(r, has({{'a': {doubled('message', n)}}}.a))",
    "a key that is not there": lambda n: f"{nested(2, n, MISSING, 'exists')}",
    "an error in each round": lambda n: f"{nested(2, n, 'int(message) == 1', 'exists')}",
    "what is dynamic": lambda n: f"dyn([{', '.join(['message'] * n)}]).map(x, dyn(x) + x).size() == 0",
    "lists in lists": lambda n: f"roles.map(r, roles.map(s, [{', '.join(['s'] * n)}])).size() == 0",
    "moments": lambda n: f"{nested(2, 2 * n, 'timestamp(message) == timestamp(0)', 'all')}",
    "durations": lambda n: f"{numbers(n)}.all(x, duration(message) == duration(author))",
    "parsed numbers": lambda n: f"{numbers(4 * n)}.all(x, double(message) == double(x))",
    "sizes": lambda n: f"{nested(2, n, 'size(message) > 0', 'all')}",
    "comparisons": lambda n: f"{nested(2, 2 * n, 'message < message + author', 'all')}",
    "constants": lambda n: f"'{'x' * (150 * n)}'.contains(message) || ['{'y' * (100 * n)}'].exists(y, y == message)",
    "a bracket without its end": lambda n: f"message.matches(r'[{LETTERS[:3] * n * 20}')",
    "names without their end": lambda n: f"message.matches(r'[{BRACED * n * 10}')",
    "a parenthesis without its end": lambda n: f"message.matches('{'(' * n * 20}')",
    "a brace without its end": lambda n: f"message.matches('a{'{1,' * n * 20}')",
    "a quotation without its end": lambda n: f"message.matches(r'{QUOTED * n * 20}')",
    "what is no expression": lambda n: "#" * (150 * n),
    "macros in macros": lambda n: f"{'roles.exists(v, ' * (2 * n)}true{')' * (2 * n)}",
    "depth": lambda n: f"{'(' * n}{'!' * n}true{')' * n}",
    "terms": lambda n: " || ".join([f"message + '{n}' == author"] * n),
    "exactly one": lambda n: f"{nested(2, n, 'message == author', 'exists_one').replace('.exists_one(v1', '.exists_one(w', 1)}",
}
_STEPS = (1, 2, 3, 5, 8, 12, 18, 26)

REFUSED = [
    *FOUND.values(),
    "message.matches(message)",
    "type.matches(createdBy)",
    "timestamp(0).getHours('/dev/stdin') == 1",
    "timestamp(0).getHours('../../dev/stdin') == 1",
    "timestamp(0).getHours(message) == 1",
    "google.protobuf.Struct{fields: {'a': google.protobuf.Value{string_value: message}}} == {}",
    "google.protobuf.StringValue{value: message} == message",
    "roles.all(a, roles.all(b, roles.all(c, a == b)))",
    f"message.matches({quoted(LETTERS * 400)})",
    "message.matches('((a{0,1000}b){0,1000}c){0,1000}')",
    "message.matches('[ab]*a[ab]{1000}c')",
    f"message.matches('[ab]*a(?:{'()' * 1500}[ab]){{6}}c')",
    f"message.matches('[ab]*a(?:{'()' * 300}[ab]){{8}}c')",
    f"message.matches('[ab]*a(?:{'(' * 100}[ab]{')' * 100}){{9}}c')",
    "message.matches('[ab]*a(){900}[ab]{9}c')",
]


def expressions(seed: int = SEED, number: int = NUMBER) -> list[str]:
    """So many of them, always the same for a seed: the families, then whatever a grammar makes."""
    found = [*REFUSED, *(made(n) for n in _STEPS for made in _FAMILIES.values())]
    found = [text for text in found if len(text) <= 4096]
    dice = random.Random(seed)
    while len(found) < number:
        if len(text := _Grammar(dice).truth(dice.randrange(1, 6))) <= 4096:
            found.append(text)
    return found


class _Grammar:
    """Random expressions over all that CEL has for building and looping, right by their types."""

    def __init__(self, dice: random.Random) -> None:
        self._dice = dice
        self._bound: list[str] = []

    def truth(self, depth: int) -> str:
        return self._one_of(depth, ["type == 'x'", "'a' in roles"], _TRUTHS)

    def text(self, depth: int) -> str:
        return self._one_of(depth, ["message", "author", "contentName", *self._bound], _TEXTS)

    def texts(self, depth: int) -> str:
        return self._one_of(depth, ["roles", "contentKey", "['a', message]"], _LISTS)

    def _one_of(self, depth: int, plain: list[str], made: list[str]) -> str:
        return self._dice.choice(plain) if depth <= 0 else self._filled(self._dice.choice(made), depth - 1)

    def _filled(self, template: str, depth: int) -> str:
        variable = f"v{len(self._bound)}"
        found = []
        for piece in template.split():
            match piece:
                case "TRUTH" | "TEXT" | "TEXTS":
                    found.append(getattr(self, piece.lower())(depth))
                case "BIND":
                    self._bound.append(variable)
                    found.append(variable)
                case "UNBIND":
                    self._bound.pop()
                case _:
                    found.append(piece)
        return " ".join(found)


_TRUTHS = [
    "( TEXT == TEXT )",
    "( TEXT < TEXT )",
    "( TEXTS == TEXTS )",
    "( TEXT in TEXTS )",
    "TEXT .contains( TEXT )",
    "TEXT .matches('(a|[^b])*c[a-z]{9}')",
    "( size( TEXT ) == 0 )",
    "( TEXTS .size() == 0 )",
    "TEXTS .exists( BIND , TRUTH UNBIND )",
    "TEXTS .all( BIND , TRUTH UNBIND )",
    "TEXTS .exists_one( BIND , TRUTH UNBIND )",
    "( TRUTH && TRUTH )",
    "( TRUTH ? TRUTH : TRUTH )",
    "( timestamp( TEXT ) == timestamp(0) )",
]
_TEXTS = [
    "( TEXT + TEXT )",
    "( TEXT + TEXT + TEXT )",
    "string(bytes( TEXT ))",
    "( TRUTH ? TEXT : TEXT )",
    "string(size( TEXTS ))",
    "TEXTS [0]",
    "{'a': TEXT }.a",
    "{ TEXT : TEXT }[ TEXT ]",
]
_LISTS = [
    "( TEXTS + TEXTS )",
    "[ TEXT , TEXT , TEXT ]",
    "TEXTS .map( BIND , TEXT UNBIND )",
    "TEXTS .map( BIND , TRUTH , TEXT UNBIND )",
    "TEXTS .filter( BIND , TRUTH UNBIND )",
    "( TRUTH ? TEXTS : TEXTS )",
    "{ TEXT : 1 }.map( BIND , TEXT UNBIND )",
]


def largest_events() -> Iterator[dict[str, Any]]:
    """Variables as large as the API lets them be, and larger: what costs most depends on what they say."""
    dice = random.Random(7)
    kinds: list[Callable[[int], str]] = [
        lambda size: "a" * size,
        lambda size: "".join(dice.choices("ab", k=size)),
        lambda size: "".join(dice.choices("0123456789abcdef", k=size)),
        lambda size: "\u00e9" * size,
        lambda size: "\U0001f98a" * size,
        lambda size: "1h" * (size // 2),
    ]
    for made in kinds:
        for number_of_roles in (64, 1000):
            event: dict[str, Any] = {name: made(64) for name in variables.TEXTS}
            event |= {"message": made(65_536), "author": made(1024), "contentName": made(480), "sourceReference": made(500)}
            event["roles"] = [made(99) + str(number % 10) for number in range(number_of_roles)]
            event["contentKey"] = [made(24) for _ in range(20)]
            yield event


def status(name: str) -> float:
    """MiB, of this process."""
    with open("/proc/self/status") as lines:
        [kib] = [line.split()[1] for line in lines if line.startswith(f"{name}:")]
    return int(kib) / 1024


def run(seed: int) -> dict[str, Any]:
    assert cel_batches.matches, "this process has loaded what a worker has"
    taken, refused, registered = [], 0, (0.0, "")
    for text in expressions(seed):
        began = time.thread_time()
        try:
            taken.append(Expression(text))
        except ExpressionMistake:
            refused += 1
        registered = max(registered, (time.thread_time() - began, text))
    events = list(largest_events())
    for event in events:
        Expression("type == 'x' && roles.exists(r, r == message)").evaluate(event)
    before = status("VmRSS")
    slowest, answers, unanswered = (0.0, ""), 0, 0
    for each in taken:
        for event in events:
            seconds = []
            for _ in range(2):
                began = time.thread_time()
                try:
                    each.evaluate(event)
                    answers += 1
                except ExpressionFailed:
                    unanswered += 1
                seconds.append(time.thread_time() - began)
            slowest = max(slowest, (min(seconds), each.text))
    return {
        "taken": len(taken),
        "refused": refused,
        "answers": answers,
        "unanswered": unanswered,
        "slowest_ms": round(1000 * slowest[0], 2),
        "slowest": slowest[1][:300],
        "registered_ms": round(1000 * registered[0], 2),
        "registered": registered[1][:300],
        "before_mib": round(before, 1),
        "peak_mib": round(status("VmHWM") - before, 1),
        "after_mib": round(status("VmRSS"), 1),
    }


if __name__ == "__main__":
    print(json.dumps(run(int(sys.argv[1]))))
