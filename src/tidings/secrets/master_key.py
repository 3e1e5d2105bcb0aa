"""The master key: where it comes from, and what it wraps."""

from __future__ import annotations

import base64
import binascii
import hmac
import logging
import os
import secrets
import shlex
import stat
import subprocess
import uuid
from dataclasses import dataclass, field
from pathlib import Path

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from tidings.errors import OperatorError
from tidings.secrets.settings import SecretsSettings

_log = logging.getLogger(__name__)

KEY_BYTES = 32
NONCE_BYTES = 12
_COMMAND_SECONDS = 30
_PREFIX = "TIDINGS_SECRETS__"
_WANTED = "32 bytes in base64: `tidings secrets new-master-key FILE` makes one"


@dataclass(frozen=True, slots=True)
class MasterKey:
    key: bytes = field(repr=False)
    source: str = "the new master key"
    """The setting that names it."""

    @property
    def id(self) -> str:
        """Tells master keys apart. It reveals nothing of the key."""
        return hmac.digest(self.key, b"tidings master key id", "sha256")[:8].hex()

    def wrap(self, data_key_id: uuid.UUID, data_key: bytes) -> bytes:
        nonce = os.urandom(NONCE_BYTES)
        return nonce + AESGCM(self.key).encrypt(nonce, data_key, _place(data_key_id))

    def unwrap(self, data_key_id: uuid.UUID, wrapped: bytes) -> bytes:
        try:
            return AESGCM(self.key).decrypt(wrapped[:NONCE_BYTES], wrapped[NONCE_BYTES:], _place(data_key_id))
        except InvalidTag:
            raise OperatorError(
                f"The data key {data_key_id} cannot be unwrapped: its row was changed. Restore data_keys from a backup."
            ) from None


def _place(data_key_id: uuid.UUID) -> bytes:
    return b"data_keys.wrapped\0" + data_key_id.bytes


def read(settings: SecretsSettings) -> MasterKey:
    """The master key that the settings name, or one sentence that says which setting is missing or wrong."""
    if settings.master_key_file is not None:
        return from_file(settings.master_key_file, f"{_PREFIX}MASTER_KEY_FILE")
    if settings.master_key_command:
        return from_command(settings.master_key_command, f"{_PREFIX}MASTER_KEY_COMMAND")
    if text := settings.master_key.get_secret_value():
        return _parsed(text, f"{_PREFIX}MASTER_KEY")
    raise OperatorError(
        f"No master key: set {_PREFIX}MASTER_KEY_FILE, {_PREFIX}MASTER_KEY or {_PREFIX}MASTER_KEY_COMMAND."
        " `tidings secrets new-master-key FILE` makes a file; beside `tidings up` it is master.key in the data folder."
    )


def from_file(file: Path, source: str) -> MasterKey:
    try:
        if file.stat().st_mode & stat.S_IROTH:
            _log.warning("%s names %s, which every user of this machine can read: run `chmod 600 %s`.", source, file, file)
        return _parsed(file.read_text("ascii"), f"{source} ({file})")
    except OSError as error:
        raise OperatorError(f"{source} names {file}, which cannot be read: {error.strerror}.") from None
    except UnicodeDecodeError:
        raise _wrong(f"{source} ({file})") from None


def from_command(command: str, source: str) -> MasterKey:
    """What the command writes to stderr is its own explanation, and is repeated; what it prints never is."""
    try:
        done = subprocess.run(
            shlex.split(command),
            capture_output=True,
            timeout=_COMMAND_SECONDS,
            stdin=subprocess.DEVNULL,
            check=False,
        )
    except (OSError, ValueError, subprocess.TimeoutExpired) as error:
        reason = f"no end within {_COMMAND_SECONDS} s" if isinstance(error, subprocess.TimeoutExpired) else str(error)
        raise OperatorError(f"{source} cannot be run: {reason}.") from None
    if done.returncode:
        said = (done.stderr.decode(errors="replace").strip().splitlines() or ["nothing on stderr"])[-1][:300]
        raise OperatorError(f"{source} failed with status {done.returncode}: {said}")
    return _parsed(done.stdout.decode("latin-1"), source)  # raw bytes are no base64, and are not repeated


def make_file(file: Path) -> None:
    """A new master key in a file that only its owner can read. A file that is there is left alone."""
    text = base64.b64encode(secrets.token_bytes(KEY_BYTES)) + b"\n"
    partial = file.with_name(f"{file.name}.{secrets.token_hex(4)}.new")
    try:
        descriptor = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "wb") as out:
            out.write(text)
            out.flush()
            os.fsync(out.fileno())
        os.link(partial, file)  # unlike a rename, it never takes the place of a key that is there
    except FileExistsError:
        raise OperatorError(f"{file} is there already: a master key is never overwritten.") from None
    except OSError as error:
        raise OperatorError(f"{file} cannot be written: {error.strerror}.") from None
    finally:
        partial.unlink(missing_ok=True)


def _parsed(text: str, source: str) -> MasterKey:
    try:
        key = base64.b64decode(text.strip(), validate=True)
    except (ValueError, binascii.Error):
        raise _wrong(source) from None
    if len(key) != KEY_BYTES:
        raise _wrong(source)
    return MasterKey(key, source)


def _wrong(source: str) -> OperatorError:
    return OperatorError(f"{source} is not a master key. It must be {_WANTED}.")
