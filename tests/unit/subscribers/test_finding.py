"""Subscribers are found by their entry points; a broken one is told of and left out, and never stops the server."""

from __future__ import annotations

import logging
import sys
import threading
from pathlib import Path

import pytest

from catalog_events import commit
from tidings.errors import ExpressionMistake
from tidings.settings import Settings
from tidings.subscribers import EventListener, EventSubscriber, Registrar, finding
from tidings.subscribers.settings import SubscribersSettings

GOOD = """
from tidings.subscribers import EventListener, EventSubscriber

seen = []

class Listener(EventListener):
    def on_event(self, event):
        seen.append(event.id)

class Subscriber(EventSubscriber):
    def register(self, registrar):
        registrar.register(Listener())
"""


def install(folder: Path, name: str, code: str, target: str = "Subscriber") -> None:
    """As pip leaves a package behind."""
    module = f"installed_{name}"
    (folder / f"{module}.py").write_text(code)
    info = folder / f"{module}-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {module}\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[tidings.subscribers]\n{name} = {module}:{target}\n")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.syspath_prepend(str(tmp_path))
    return tmp_path


def test_an_installed_subscriber_is_found_and_called(folder: Path) -> None:
    install(folder, "good", GOOD)
    dispatcher = finding.start(Settings())
    dispatcher.publish([commit(id="1")])
    dispatcher.stop()
    assert [feed.name for feed in dispatcher.feeds] == ["good"]
    assert sys.modules["installed_good"].seen == ["1"]


@pytest.mark.parametrize(
    ("code", "words"),
    [
        ("import nowhere_at_all", "ModuleNotFoundError"),
        ("raise SystemExit(3)", "SystemExit"),
        ("this is no Python", "SyntaxError"),
        ("Subscriber = 5", "TypeError"),
        ("from tidings.subscribers import EventSubscriber as Subscriber", "must have a method register"),
        (GOOD.replace("registrar.register(Listener())", "raise OSError('no broker')"), "no broker"),
        (GOOD.replace("Listener()", "Listener(), 'typ == 1'"), "did you mean type"),
        (GOOD.replace("Listener()", "object()"), "must be a tidings.subscribers.EventListener"),
        (GOOD.replace("Listener()", "Listener()); registrar.register(None"), "must be a tidings.subscribers.EventListener"),
    ],
    ids=lambda value: "" if "\n" in value else value[:30],
)
def test_a_broken_one_is_left_out_and_the_others_are_served(
    folder: Path, code: str, words: str, caplog: pytest.LogCaptureFixture
) -> None:
    install(folder, "broken", code)
    install(folder, "good", GOOD)
    with caplog.at_level(logging.INFO):
        dispatcher = finding.start(Settings())
    dispatcher.publish([commit(id="1")])
    dispatcher.stop()
    assert [feed.name for feed in dispatcher.feeds] == ["good"]
    assert sys.modules["installed_good"].seen[-1] == "1"
    assert "subscriber broken is left out, it could not register" in caplog.text
    assert words in caplog.text
    for name in ("installed_broken", "installed_good"):
        sys.modules.pop(name, None)


def test_one_that_never_comes_back_is_left_out(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr(finding, "START_SECONDS", 0.2)  # only a shorter wait
    release = threading.Event()
    late: list[BaseException] = []

    class Hanging(EventSubscriber):
        def register(self, registrar: Registrar) -> None:
            release.wait(60)
            try:
                registrar.register(EventListener())
            except RuntimeError as error:
                late.append(error)

    dispatcher = finding.start_with([("hanging", Hanging)], SubscribersSettings())
    assert dispatcher.feeds == ()
    assert "has not registered within 0.2 s" in caplog.text
    release.set()
    for thread in threading.enumerate():
        if thread.name == "register-hanging":
            thread.join(120)
    assert "too late" in str(late[0])
    dispatcher.stop()


def test_a_subscriber_may_have_several_listeners_and_each_has_a_name_of_its_own() -> None:
    class Twice(EventSubscriber):
        def register(self, registrar: Registrar) -> None:
            self.names = [registrar.register(EventListener(), each).name for each in ("type == 'COMMIT'", None)]

    dispatcher = finding.start_with([("one", Twice), ("one", Twice), ("two", Twice)], SubscribersSettings())
    assert [feed.name for feed in dispatcher.feeds] == ["one", "one-2", "one-3", "one-4", "two", "two-2"]
    dispatcher.stop()


def test_a_mistake_in_a_filter_is_raised_where_it_is_registered() -> None:
    mistakes: list[ExpressionMistake] = []

    class Careful(EventSubscriber):
        def register(self, registrar: Registrar) -> None:
            try:
                registrar.register(EventListener(), "type ==")
            except ExpressionMistake as mistake:
                mistakes.append(mistake)

    finding.start_with([("careful", Careful)], SubscribersSettings()).stop()
    assert (mistakes[0].line, mistakes[0].column) == (1, 8)


def test_the_one_that_logs_is_there_if_the_settings_say_so(caplog: pytest.LogCaptureFixture) -> None:
    assert finding.start(Settings()).feeds == ()
    with caplog.at_level(logging.INFO, "tidings.catalog.events"):
        dispatcher = finding.start(Settings(subscribers=SubscribersSettings(log=True)))
        dispatcher.publish([commit()])
        dispatcher.stop()
    [record] = [record for record in caplog.records if record.name == "tidings.catalog.events"]
    assert record.getMessage() == "COMMIT on /refs/heads/main of r"
    assert record.event["commitMeta"]["message"] == "first"  # type: ignore[attr-defined]
