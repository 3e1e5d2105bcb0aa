"""What went wrong, as an S3 answer. This is the only place where an error becomes one; other fronts have their own forms."""

from __future__ import annotations

import logging

import psycopg

from tidings.api import xml
from tidings.api.response import Response
from tidings.errors import CallerError

_log = logging.getLogger(__name__)


def response(error: Exception, method: str, resource: str, request_id: str, host_id: str) -> Response:
    """The answer to a request that failed. What is not the caller's fault is logged here, once, by the request's id."""
    problem = as_caller_error(error, method, resource, request_id)
    if method == "HEAD":
        return Response(problem.status, problem.headers)
    elements = [
        ("Code", problem.code),
        ("Message", problem.message),
        *problem.elements.items(),
        ("Resource", resource),
        ("RequestId", request_id),
        ("HostId", host_id),
    ]
    body = xml.document("Error", elements, namespace="")
    return Response(problem.status, {"content-type": "application/xml", **problem.headers}, body)


def as_caller_error(error: Exception, method: str, resource: str, request_id: str) -> CallerError:
    """What the caller hears of any failure, whichever service was asked."""
    if isinstance(error, CallerError):
        return error
    fields = {"request_id": request_id, "method": method, "resource": resource}
    if isinstance(error, psycopg.OperationalError | psycopg.InterfaceError):
        # Without the traceback: it would say the same for every request while the database is away.
        words = "request %s, %s %r: the database did not answer: %s"
        _log.warning(words, request_id, method, resource, error, extra=fields)
        return CallerError("SlowDown", "The service is not ready to answer: please try again.")
    _log.error("request %s, %s %r failed", request_id, method, resource, exc_info=error, extra=fields)
    return CallerError("InternalError", "We encountered an internal error. Please try again.")
