"""`tidings consume files`: the webhook on a port of its own."""

from __future__ import annotations

import logging
from functools import partial

from starlette.types import ASGIApp

from tidings import log, metrics
from tidings.api import exposure
from tidings.consumers.files.authorising import VARIABLE, allowed
from tidings.consumers.files.webhook import create_app
from tidings.errors import OperatorError
from tidings.serving import check_free, die_with_parent, run
from tidings.settings import Settings

_log = logging.getLogger(__name__)


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
    for sentence in exposure.of_front("files webhook", files.host, "TIDINGS_FILES__HOST"):
        _log.warning("%s", sentence)
    with metrics.shared():
        run(partial(_load, settings), files.host, files.port, files.workers, settings.limits)


def _load(settings: Settings) -> ASGIApp:
    """What runs first in each worker."""
    die_with_parent()
    log.to_stderr(settings)
    return create_app(settings)
