"""Every plugin keeps its folder's contract. A new file is tested at once."""

from __future__ import annotations

import ast
import inspect
import json
from pathlib import Path

import pytest
from pyspark.sql import Column, SparkSession

from tidings import plugins
from tidings.events.profiles import AWS
from tidings.formats import Context

FORMATS = plugins.names("formats")
DESTINATIONS = plugins.names("destinations")


@pytest.mark.parametrize("name", DESTINATIONS)
def test_a_destination_s_docstring_is_its_card(name: str) -> None:
    card = inspect.getdoc(plugins.load("destinations", name)) or ""
    lines = {line.split()[0] for line in card.splitlines() if line.strip()}
    assert {"ARN", "Guarantee", "Order", "Batch", "Limits"} <= lines


@pytest.mark.parametrize("name", FORMATS)
def test_a_format_is_one_column_that_knows_no_clock_and_no_chance(name: str, spark: SparkSession) -> None:
    assert spark.version
    module = plugins.load("formats", name)
    assert isinstance(module.message(Context("eu-west-1", AWS)).body, Column)
    called = {node.attr for node in ast.walk(ast.parse(inspect.getsource(module))) if isinstance(node, ast.Attribute)}
    assert not called & {"now", "current_timestamp", "rand", "uuid", "udf", "pandas_udf", "monotonically_increasing_id"}


def test_an_unknown_plugin_is_named_with_what_there_is() -> None:
    with pytest.raises(KeyError, match=r"no 'carrier-pigeon'.*pubsub"):
        plugins.load("destinations", "carrier-pigeon")


def test_names_are_files_and_nothing_else() -> None:
    for package, names in (("formats", FORMATS), ("destinations", DESTINATIONS)):
        folder = Path(inspect.getfile(plugins)).parent / package
        assert names == sorted(file.stem for file in folder.glob("*.py") if file.stem != "__init__")
    assert json.dumps(FORMATS)
