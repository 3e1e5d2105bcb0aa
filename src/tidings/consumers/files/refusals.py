"""Why a request is not taken, by who must act; each has the HTTP status of seed 002's table.

Refusal
├── Invalid          400: whoever sent it; the same again is refused again
├── Unauthenticated  401: it is not a message of SNS to us, or not of now
├── Unauthorised     403: the operator, if the topic or the bucket is to be taken
└── Failed           500: nobody or the operator; SNS sends it again
    ├── AtlasNotFound
    └── EtagMismatch
"""

from __future__ import annotations

from typing import ClassVar


class Refusal(Exception):
    """The words are for the log and, but for 401, for the answer."""

    status: ClassVar[int] = 500


class Invalid(Refusal):
    status = 400


class Unauthenticated(Refusal):
    status = 401


class Unauthorised(Refusal):
    status = 403


class Failed(Refusal):
    status = 500


class AtlasNotFound(Failed): ...


class EtagMismatch(Failed): ...
