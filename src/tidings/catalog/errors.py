"""What the catalog refuses with: Nessie's error codes."""

from __future__ import annotations

from collections.abc import Iterable

from tidings.errors import CallerError

_STATUS = {
    "BAD_REQUEST": 400,
    "UNAUTHORIZED": 401,
    "FORBIDDEN": 403,
    "CONTENT_NOT_FOUND": 404,
    "NOT_FOUND": 404,
    "REFERENCE_NOT_FOUND": 404,
    "REFERENCE_ALREADY_EXISTS": 409,
    "REFERENCE_CONFLICT": 409,
}
_OURS = ("UNAUTHORIZED", "NOT_FOUND")
_MOST_SHOWN = 20


class CatalogError(CallerError):
    @property
    def status(self) -> int:
        return _STATUS[self.code]

    @property
    def error_code(self) -> str:
        """As clients know it: Nessie has no code for some, there the status says all."""
        return "UNKNOWN" if self.code in _OURS else self.code


def bad_request(sentence: str) -> CatalogError:
    return CatalogError("BAD_REQUEST", sentence)


def no_reference(name: str) -> CatalogError:
    return CatalogError("REFERENCE_NOT_FOUND", f"Named reference '{name[:200]}' not found")


def no_commit(hash: str, reference: str | None = None) -> CatalogError:
    where = f" on reference '{reference[:200]}'" if reference else ""
    return CatalogError("REFERENCE_NOT_FOUND", f"Could not find commit '{hash[:64]}'{where}.")


def no_content(key: object, reference: str) -> CatalogError:
    return CatalogError("CONTENT_NOT_FOUND", f"Could not find content for key '{key}' in reference '{reference[:200]}'.")


def exists(name: str) -> CatalogError:
    return CatalogError("REFERENCE_ALREADY_EXISTS", f"Named reference '{name[:200]}' already exists.")


def conflict(problems: Iterable[str]) -> CatalogError:
    found = list(problems)
    more = [f"and {len(found) - _MOST_SHOWN} more"] if len(found) > _MOST_SHOWN else []
    return CatalogError("REFERENCE_CONFLICT", "; ".join([*found[:_MOST_SHOWN], *more]))


def moved(name: str, expected: str, found: str) -> CatalogError:
    return conflict([f"Reference '{name[:200]}' is at {found}, not at the expected hash {expected}: read it again"])
