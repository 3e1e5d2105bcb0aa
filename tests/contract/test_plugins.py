"""Every plugin keeps its folder's contract. A new file is tested at once."""

from __future__ import annotations

import ast
import inspect
import json
from pathlib import Path

import pytest
from pyspark.errors import AnalysisException
from pyspark.sql import Column, SparkSession

from change_rows import change, routed, spoken
from tidings import plugins
from tidings.events import schema
from tidings.events.formats import CHOOSABLE
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


@pytest.mark.parametrize("name", FORMATS)
def test_a_format_speaks_of_no_detail_that_it_does_not_name(name: str, spark: SparkSession) -> None:
    named = getattr(plugins.load("formats", name), "DETAILS", ())
    assert set(named) <= set(schema.DETAILS)
    changes = routed(spark, change())
    for binary in (False, True):
        context = Context("eu-west-1", AWS, binary=binary)
        assert spoken(name, context, changes.drop(*(set(schema.DETAILS) - set(named))))
    for detail in named:
        with pytest.raises(AnalysisException):
            spoken(name, context, changes.drop(detail))


def test_formats_that_may_be_chosen_are_there_and_the_others_are_a_catalog_s() -> None:
    assert {name for name in FORMATS if not name.startswith("nessie")} == set(CHOOSABLE)


def test_an_unknown_plugin_is_named_with_what_there_is() -> None:
    with pytest.raises(KeyError, match=r"no 'carrier-pigeon'.*pubsub"):
        plugins.load("destinations", "carrier-pigeon")


def test_names_are_files_and_nothing_else() -> None:
    for package, names in (("formats", FORMATS), ("destinations", DESTINATIONS)):
        folder = Path(inspect.getfile(plugins)).parent / package
        assert names == sorted(file.stem for file in folder.glob("*.py") if file.stem != "__init__")
    assert json.dumps(FORMATS)
