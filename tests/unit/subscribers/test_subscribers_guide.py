"""What the guide for those who write subscribers shows is so."""

from __future__ import annotations

import ast
import re
import tomllib
from pathlib import Path

import pytest

from tidings.cel import variables
from tidings.cel.expression import Expression
from tidings.errors import ExpressionMistake
from tidings.subscribers import EventListener, Status

ROOT = Path(__file__).parent.parent.parent.parent
GUIDE = (ROOT / "docs" / "subscribers.md").read_text()


def test_its_table_has_every_variable() -> None:
    rows = dict(re.findall(r"^\| `(\w+)` \| (.*) \|$", GUIDE.split("## Filters")[1].split("## What")[0], re.MULTILINE))
    assert rows == variables.TEXTS | variables.LISTS


def test_its_mistake_is_told_in_these_words() -> None:
    with pytest.raises(ExpressionMistake) as told:
        Expression("type == 'COMMIT' && (referense == 'main')")
    assert f"```\n{told.value}\n```" in GUIDE
    with pytest.raises(ExpressionMistake) as told:
        Expression("contentKey.map(a, roles.map(b, message + message)).size() == 0")
    assert f"```\n{told.value}\n```" in GUIDE


def test_its_expressions_are_right_and_its_python_is_python() -> None:
    examples = re.findall(r"```python\n(.*?)```", GUIDE, re.DOTALL)
    for example in examples:
        ast.parse(example)
    expressions = re.findall(r'Listener\(\), "(.*)"\)', GUIDE)
    assert len(expressions) == 2
    for text in expressions:
        Expression(text)


def test_its_entry_point_is_that_of_the_example() -> None:
    [shown] = re.findall(r"```toml\n(.*?)```", GUIDE, re.DOTALL)
    example = tomllib.loads((ROOT / "examples" / "subscriber" / "pyproject.toml").read_text())
    assert tomllib.loads(shown)["project"]["entry-points"] == example["project"]["entry-points"]


def test_it_names_every_method_and_every_figure_of_a_status() -> None:
    for name in [name for name in vars(EventListener) if name.startswith("on_")] + list(Status.__slots__):
        assert f"`{name}`" in GUIDE, name
