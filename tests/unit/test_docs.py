"""What the documents show exists: commands, settings, packages, links."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest
import typer
from pydantic import BaseModel

from tidings import plugins, settings
from tidings.api.limits import LimitSettings
from tidings.cli import app
from tidings.consumers.files.settings import FilesSettings

ROOT = Path(__file__).parent.parent.parent
PAGES = sorted([ROOT / "README.md", ROOT / "ARCHITECTURE.md", ROOT / "CHANGELOG.md", *(ROOT / "docs").rglob("*.md")])


def names(paths: list[Path]) -> list[str]:
    return [str(path.relative_to(ROOT)) for path in paths]


@pytest.mark.parametrize("page", PAGES, ids=names(PAGES))
def test_every_link_leads_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#]+)\)", page.read_text()):
        assert target.startswith("http") or (page.parent / target).exists(), f"{page.name}: {target}"


@pytest.mark.parametrize("page", PAGES, ids=names(PAGES))
def test_every_make_target_that_is_shown_exists(page: Path) -> None:
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    assert set(re.findall(r"(?:`|\$ )make ([a-z]+)", page.read_text())) <= targets


@pytest.mark.parametrize("page", PAGES, ids=names(PAGES))
def test_every_command_that_is_shown_exists(page: Path) -> None:
    known = set(getattr(typer.main.get_command(app), "commands", {}))
    assert {"up", "stream", "lanes"} <= known
    assert set(re.findall(r"`tidings ([a-z-]+)", page.read_text())) <= known


@pytest.mark.parametrize("page", PAGES, ids=names(PAGES))
def test_every_setting_that_is_named_exists(page: Path) -> None:
    for section, field in re.findall(r"TIDINGS_([A-Z]+)__([A-Z0-9_]+)", page.read_text()):
        model = settings.Settings.model_fields[section.lower()].annotation
        assert model is not None
        assert field.lower() in model.model_fields, f"{page.name}: {section}__{field}"


def test_the_toml_in_the_operator_s_guide_is_valid(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    examples = re.findall(r"```toml\n(.*?)```", (ROOT / "docs" / "operating.md").read_text(), re.DOTALL)
    file = tmp_path / "tidings.toml"
    file.write_text("\n".join(examples))
    monkeypatch.setenv(settings.FILE_VARIABLE, str(file))
    loaded = settings.load()
    assert loaded.spark.master == "spark://spark.internal:7077"
    known, other = "12e9f7fe-0e0a-48a8-b16b-870baac1441b", "22e9f7fe-0e0a-48a8-b16b-870baac1441b"
    places = [
        ("acme-prod", "any"),
        ("shared-prod", "acme-x"),
        ("shared-prod", "public-x"),
        ("shared-prod", "x"),
        ("acme-prod2", "x"),
    ]
    assert [loaded.pubsub.admits(known, *place) for place in places] == [True, True, True, False, False]
    assert [loaded.pubsub.admits(other, *place) for place in places] == [False, False, True, False, False]
    assert loaded.kafka.clusters["main"].binds_to_others(other, "acme-x")


def test_the_guide_to_the_formats_shows_golden_messages_of_each() -> None:
    page = (ROOT / "docs" / "formats.md").read_text()
    shown = re.findall(r"<!-- (tests/golden/\S+) -->\n```json\n(.*?)```", page, re.DOTALL)
    assert len(shown) == page.count("```json")
    for file, example in shown:
        assert example == (ROOT / file).read_text(), file
    formats = set(plugins.names("formats"))
    assert {Path(file).parent.name for file, _ in shown} == formats
    assert set(re.findall(r"^## (\w+)$", page, re.MULTILINE)) == formats


def test_the_kafka_cluster_in_the_page_of_destinations_is_valid(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    [example] = re.findall(r"```toml\n(.*?)```", (ROOT / "docs" / "destinations.md").read_text(), re.DOTALL)
    file = tmp_path / "tidings.toml"
    file.write_text(example)
    monkeypatch.setenv(settings.FILE_VARIABLE, str(file))
    assert settings.load().kafka.clusters["main"].option("sasl.password") == "..."


def test_the_toml_in_the_cluster_guide_is_valid(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    masters = []
    for number, example in enumerate(re.findall(r"```toml\n(.*?)```", (ROOT / "docs" / "cluster.md").read_text(), re.DOTALL)):
        file = tmp_path / f"{number}.toml"
        file.write_text(example)
        monkeypatch.setenv(settings.FILE_VARIABLE, str(file))
        loaded = settings.load().spark
        assert all(name.startswith("spark.") for name in loaded.conf)
        masters.append(loaded.master.partition(":")[0])
    assert masters == ["spark", "yarn", "k8s", "local[*]"]


def test_the_python_in_the_spark_guide_is_python() -> None:
    for example in re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "spark.md").read_text(), re.DOTALL):
        ast.parse(example)


def test_architecture_and_readme_name_every_package() -> None:
    packages = {path.parent.name for path in (ROOT / "src" / "tidings").glob("*/__init__.py")}
    for page in ("ARCHITECTURE.md", "README.md"):
        assert packages <= set(re.findall(r"`([a-z]+)/`", (ROOT / page).read_text())), page


def test_every_setting_says_what_it_means() -> None:
    for section in settings.Settings.model_fields.values():
        assert section.annotation is not None
        for name, field in section.annotation.model_fields.items():
            assert field.description, name


@pytest.mark.parametrize(
    ("page", "section", "model", "prefix"),
    [("operating.md", "LIMITS", LimitSettings, ""), ("files.md", "FILES", FilesSettings, "h5ad_")],
)
def test_the_limits_are_documented_as_they_are(page: str, section: str, model: type[BaseModel], prefix: str) -> None:
    row = rf"^\| `TIDINGS_{section}__(\w+)` \| (\S+) \| (.*?) \|"
    rows = re.findall(row, (ROOT / "docs" / page).read_text(), re.MULTILINE)
    fields = [(name, field) for name, field in model.model_fields.items() if name.startswith(prefix)]
    assert fields
    assert [(name.lower(), float(value), words) for name, value, words in rows] == [
        (name, float(field.default), field.description) for name, field in fields
    ]
