"""`tidings consume files`: the webhook on a port of its own."""

from __future__ import annotations

from functools import partial

from granian import Granian
from granian.constants import HTTPModes, Interfaces, Loops
from granian.http import HTTP1Settings
from granian.log import LogLevels
from starlette.types import ASGIApp

from tidings import log, metrics
from tidings.consumers.files.authorising import VARIABLE, allowed
from tidings.consumers.files.webhook import create_app
from tidings.errors import OperatorError
from tidings.serving import GRANIAN_LOG, STOP_SECONDS, check_free, die_with_parent
from tidings.settings import Settings


def serve(settings: Settings) -> None:
    """Serve until SIGTERM or SIGINT; then finish what is under way, and return. Call it from the main thread."""
    log.to_stderr(settings)
    files = settings.files
    named = allowed(files)
    _ = settings.database_url
    if not named.topics or not named.buckets:
        raise OperatorError(
            "No message would be taken: name topics and buckets in TIDINGS_FILES__SNS_TOPICS and TIDINGS_FILES__S3_BUCKETS, "
            f"or in {VARIABLE}."
        )
    check_free(files.host, files.port, "TIDINGS_FILES__HOST", "TIDINGS_FILES__PORT")
    server = Granian(
        "tidings",
        address=files.host,
        port=files.port,
        interface=Interfaces.ASGI,
        workers=files.workers,
        loop=Loops.uvloop,
        http=HTTPModes.http1,
        http1_settings=HTTP1Settings(header_read_timeout=30_000),
        websockets=False,
        respawn_failed_workers=True,
        workers_kill_timeout=STOP_SECONDS,
        log_level=LogLevels.warning,
        log_access=False,
        log_dictconfig=GRANIAN_LOG,
    )
    with metrics.shared():
        server.serve(target_loader=partial(_load, settings), wrap_loader=False)


def _load(settings: Settings) -> ASGIApp:
    """What runs first in each worker."""
    die_with_parent()
    log.to_stderr(settings)
    return create_app(settings)
