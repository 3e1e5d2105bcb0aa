"""What the front refuses with."""

from __future__ import annotations

from tidings.errors import CallerError

_STATUS = {
    "BadRequest": 400,
    "Unauthorized": 401,
    "Forbidden": 403,
    "NotFound": 404,
    "MethodNotAllowed": 405,
    "TooLarge": 413,
    "Unavailable": 503,
}


class UploadError(CallerError):
    @property
    def status(self) -> int:
        return _STATUS[self.code]
