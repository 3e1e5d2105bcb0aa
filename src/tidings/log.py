"""What the processes say about themselves, on stderr: a line for each event, as text or as JSON.

A field is passed with `extra=`: `log.warning("lane %s falls behind", lane, extra={"lane": lane})`. Values of secret settings
are masked wherever they turn up, also inside an exception's words.
"""

from __future__ import annotations

import atexit
import io
import json
import logging
import math
import os
import re
import sys
import threading
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import IO, TYPE_CHECKING, Any, Literal

from pydantic import BaseModel, Field, SecretStr

if TYPE_CHECKING:
    from tidings.settings import Settings

_LEVELS = {"py4j": "ERROR", "psycopg": "ERROR", "psycopg.pool": "WARNING"}
"""Libraries that say more than an operator can use. The pool tells when the database is away."""
_STANDARD = {*vars(logging.makeLogRecord({})), "message", "asctime", "taskName"}
_BREAKS = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]")
_PLAIN = re.compile(r"[^\s\"'=]+")
_MASK = "**********"


class LogSettings(BaseModel, frozen=True, extra="forbid"):
    """What is logged, and how."""

    format: Literal["text", "json"] = Field("text", description="text for people, or json: each line is one JSON object")
    level: Literal["DEBUG", "INFO", "WARNING", "ERROR"] = Field("INFO", description="lines of less weight are left out")


def to_stderr(settings: Settings) -> None:
    """Log as the settings say. Call it in each process, when it starts; a process that was forked may call it again."""
    secrets = sorted(_secrets(settings), key=len, reverse=True)
    if settings.log.format == "json":
        handler: logging.Handler = logging.StreamHandler(_past_stderr())
        handler.setFormatter(_Json(secrets))
        sys.excepthook = lambda kind, error, trace: _log.critical("uncaught", exc_info=(kind, error, trace))
        threading.excepthook = lambda args: _log.critical("uncaught", exc_info=args.exc_value)
        logging.captureWarnings(True)
    else:
        handler = logging.StreamHandler()
        handler.setFormatter(_Text(secrets))
    logging.basicConfig(level=settings.log.level, handlers=[handler], force=True)
    for name, level in _LEVELS.items():
        logging.getLogger(name).setLevel(level)


def is_json() -> bool:
    """Whether this process has promised that each of its lines is JSON."""
    return _stderr is not None


class _Line(logging.Formatter):
    """What both forms have in common."""

    def __init__(self, secrets: list[str]) -> None:
        super().__init__()
        self._secrets = secrets

    def _masked(self, text: str) -> str:
        for secret in self._secrets:
            text = text.replace(secret, _MASK)
        return text

    def _message(self, record: logging.LogRecord) -> str:
        try:
            return self._masked(record.getMessage())
        except Exception:  # arguments that do not fit: a line that says too little is better than none
            return self._masked(f"{record.msg} {record.args}")

    def _fields(self, record: logging.LogRecord) -> dict[str, Any]:
        return {name: self._plain(value) for name, value in vars(record).items() if name not in _STANDARD}

    def _plain(self, value: Any) -> Any:
        """As JSON has it."""
        if value is None or isinstance(value, bool | int) or (isinstance(value, float) and math.isfinite(value)):
            return value
        if isinstance(value, dict):
            return {self._masked(str(name)): self._plain(inner) for name, inner in value.items()}
        if isinstance(value, list | tuple) and not hasattr(value, "_fields"):
            return [self._plain(inner) for inner in value]
        return self._masked(str(value))

    def _exception(self, record: logging.LogRecord) -> str:
        words = [self.formatException(record.exc_info)] if record.exc_info and record.exc_info[0] else []
        return self._masked("\n".join([*words, *([self.formatStack(record.stack_info)] if record.stack_info else [])]))


class _Json(_Line):
    def format(self, record: logging.LogRecord) -> str:
        moment = datetime.fromtimestamp(record.created, UTC)
        line = {
            "time": moment.isoformat(timespec="milliseconds").replace("+00:00", "Z"),
            "level": record.levelname,
            "logger": record.name,
            "message": self._message(record),
        }
        line = {**line, **{name: value for name, value in self._fields(record).items() if name not in line}}
        if exception := self._exception(record):
            line["exception"] = exception
        return json.dumps(line)


class _Text(_Line):
    def format(self, record: logging.LogRecord) -> str:
        fields = "".join(f" {name}={_quoted(value)}" for name, value in self._fields(record).items())
        line = f"{self.formatTime(record)} {record.levelname} {record.name}: {_one_line(self._message(record))}{fields}"
        exception = self._exception(record)
        return f"{line}\n{exception}" if exception else line


def _one_line(text: str) -> str:
    return _BREAKS.sub(lambda found: found[0].encode("unicode_escape").decode(), text)


def _quoted(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value)
    return text if _PLAIN.fullmatch(text) and not _BREAKS.search(text) else json.dumps(text)


def _secrets(model: BaseModel) -> Iterator[str]:
    values = [value for _, value in model]
    for value in values:
        if isinstance(value, BaseModel):
            yield from _secrets(value)
        elif isinstance(value, dict):
            values.extend(value.values())
        elif isinstance(value, SecretStr) and value.get_secret_value():
            yield value.get_secret_value()


_log = logging.getLogger("tidings")
_foreign = logging.getLogger("stderr")
_GRAVE = re.compile(r"(\d\d/\d\d/\d\d \S+ )?(WARN|ERROR|FATAL)\b")
"""As Spark's lines begin."""
_stderr: IO[str] | None = None


def _past_stderr() -> IO[str]:
    """The real stderr. What others write there (Spark's JVM, its workers, gRPC) comes to us first, and becomes JSON as well.

    A forked process has what its parent opened, and its stray lines are wrapped by its parent.
    """
    global _stderr
    if _stderr is None:
        # unbuffered: a buffer has a lock, which a process that is forked at the wrong moment would wait for for ever
        raw = os.fdopen(os.dup(2), "wb", buffering=0)
        _stderr = io.TextIOWrapper(raw, "ascii", "backslashreplace", write_through=True)
        read, write = os.pipe()
        os.dup2(write, 2)
        os.close(write)
        reader = threading.Thread(target=_wrap, args=(read, _stderr), name="stderr", daemon=True)
        reader.start()
        atexit.register(_drain, os.getpid(), _stderr, reader)
    return _stderr


def _wrap(read: int, real: IO[str]) -> None:
    with os.fdopen(read, errors="replace", newline="\n") as lines:
        for line in lines:
            text = line.strip()
            if _is_object(text):  # of a process that we have started, and that keeps to the same rule
                real.write(f"{text}\n")
                real.flush()
            elif text:
                _foreign.log(logging.WARNING if _GRAVE.match(text) else logging.INFO, "%s", text)


def _is_object(text: str) -> bool:
    try:
        return text.startswith("{") and isinstance(json.loads(text), dict)
    except ValueError:
        return False


def _drain(owner: int, real: IO[str], reader: threading.Thread) -> None:
    """Let the last words through before the process ends."""
    if os.getpid() == owner:
        sys.stderr.flush()
        os.dup2(real.fileno(), 2)
        reader.join(0.5)
