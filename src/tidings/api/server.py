"""The HTTP server: granian, with the application in as many worker processes as the settings say."""

from __future__ import annotations

import gc
import logging
from functools import partial

from starlette.types import ASGIApp

from tidings import log, metrics
from tidings.api import exposure, tls
from tidings.api.app import create_app
from tidings.errors import OperatorError
from tidings.rules.lookup import cache_for
from tidings.rules.reaching import left_open
from tidings.secrets import keyring
from tidings.serving import check_free, die_with_parent, run
from tidings.settings import Settings
from tidings.store.blobs import Blobs

_log = logging.getLogger(__name__)


def serve(settings: Settings) -> None:
    """Serve until SIGTERM or SIGINT; then finish what is under way, and return. Call it from the main thread."""
    log.to_stderr(settings)
    host, port = settings.api.host, settings.api.port
    if port == 0:
        raise OperatorError("The server cannot choose a port by itself: set TIDINGS_API__PORT to a free one.")
    check_free(host, port, "TIDINGS_API__HOST", "TIDINGS_API__PORT")
    if settings.api.grpc_port:
        check_free(host, settings.api.grpc_port, "TIDINGS_API__HOST", "TIDINGS_API__GRPC_PORT")
    _check_settings(settings)
    settings = settings.model_copy(update={"secrets": keyring.resolved(settings.secrets)})  # read once, not in each worker
    for sentence in exposure.warnings(settings.api, settings.outgoing):
        _log.warning("%s", sentence)
    certificate, key = tls.files(settings.api)
    with metrics.shared():
        run(partial(_load, settings), host, port, settings.api.workers, settings.limits, certificate, key)


def _check_settings(settings: Settings) -> None:
    """What is wrong is said here, once and in a sentence, rather than by every worker in a traceback."""
    keyring.check_at_start(settings.database_url, settings.secrets)
    Blobs(settings.store.blobs)
    if settings.bucket_eventing.lookup == "redis" and not settings.bucket_eventing.redis_url.get_secret_value():
        raise OperatorError("lookup = redis needs a server: set TIDINGS_BUCKET_EVENTING__REDIS_URL.")
    cache_for(settings.bucket_eventing)
    for place in left_open(settings):
        _log.warning("%s", place)


def _load(settings: Settings) -> ASGIApp:
    """What runs first in each worker."""
    die_with_parent()
    log.to_stderr(settings)
    app = create_app(settings)
    # A request leaves next to nothing for the collector of cycles: it need not come often, nor look at all that is loaded.
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 50, 50)
    return app
