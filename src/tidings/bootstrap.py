"""The one place where settings become real things: connections, a session, a stream."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable

import psycopg
from psycopg import Connection

from tidings.delivery import session
from tidings.delivery.ownership import Owner
from tidings.delivery.pipeline import Pipeline
from tidings.delivery.stream import Stream
from tidings.errors import OperatorError
from tidings.settings import Settings


def connect(settings: Settings) -> Connection:
    """One connection for a command."""
    try:
        return psycopg.connect(settings.database_url, connect_timeout=5)
    except psycopg.OperationalError as error:
        reason = str(error).strip().splitlines()[-1]
        raise OperatorError(f"The database does not answer: {reason}. Check TIDINGS_DATABASE__URL.") from None


def check_tables(connection: Connection) -> None:
    """One clear sentence where the migrations have not been run."""
    try:
        connection.execute("select from changes limit 0")
    except psycopg.errors.UndefinedTable:
        raise OperatorError("The database has no tables of Tidings yet: run `tidings migrate` first.") from None


def log_to_stderr() -> None:
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s", stream=sys.stderr)
    for noisy in ("py4j", "psycopg"):
        logging.getLogger(noisy).setLevel(logging.ERROR)


def run_stream(settings: Settings, rebase: bool, made: Callable[[Stream], None], started: Callable[[Owner], None]) -> None:
    """Start Spark, warm it up, and run the stream until `stop` is called on what `made` was given."""
    spark = session.start(settings)
    try:
        with connect(settings) as connection:
            check_tables(connection)
        Pipeline(spark, settings).warm_up()
        stream = Stream(spark, settings, rebase)
        made(stream)
        stream.run(started)
    finally:
        spark.stop()
