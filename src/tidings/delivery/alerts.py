"""The alert of seed 000: a destination does not take messages, and the schedule of retries is spent."""

from __future__ import annotations

import json
import logging
import subprocess
import threading

from tidings.delivery.settings import DeliverySettings

log = logging.getLogger(__name__)

NAME = "bucket_eventing_publish_critical"
_HOOK_SECONDS = 30.0


def critical(settings: DeliverySettings, lane: int, destination: str, attempts: int, error: str) -> None:
    """Say it in the log, and run the operator's command if there is one. Never waits, never fails."""
    fields = {"alert": NAME, "lane": lane, "destination": destination, "attempts": attempts}
    log.critical("%s: lane %s to %s fails since %s tries: %s", NAME, lane, destination, attempts, error, extra=fields)
    if settings.alert_command:
        told = json.dumps(fields | {"error": error})
        threading.Thread(target=_run, args=(settings.alert_command, told), name="alert", daemon=True).start()


def _run(command: tuple[str, ...], told: str) -> None:
    try:
        done = subprocess.run(command, input=told.encode(), capture_output=True, timeout=_HOOK_SECONDS, check=False)
        if done.returncode:
            words = done.stderr.decode(errors="replace").strip()[-300:]
            log.error("the alert command %s ended with %s: %s", command[0], done.returncode, words)
    except (OSError, subprocess.TimeoutExpired) as error:
        log.error("the alert command %s failed: %s", command[0], error)
