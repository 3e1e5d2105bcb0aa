"""Where the master key comes from, and what is said where it does not."""

from __future__ import annotations

import base64
import os
import stat
import sys
import uuid
from pathlib import Path

import pytest

from tidings import settings
from tidings.errors import OperatorError
from tidings.secrets import keyring, master_key
from tidings.secrets.master_key import MasterKey
from tidings.secrets.settings import SecretsSettings

KEY = bytes(range(32))
TEXT = base64.b64encode(KEY).decode()


def given(**values: object) -> SecretsSettings:
    return SecretsSettings.model_validate(values)


def test_it_comes_from_a_file_a_variable_or_a_command(tmp_path: Path) -> None:
    file = tmp_path / "master.key"
    file.write_text(f"{TEXT}\n")
    command = f"{sys.executable} -c 'print(\"{TEXT}\")'"
    found = [master_key.read(given(**each)) for each in (
        {"master_key_file": file}, {"master_key": TEXT}, {"master_key_command": command}
    )]  # fmt: skip
    assert [each.key for each in found] == [KEY] * 3
    assert len({each.id for each in found}) == 1
    assert TEXT not in repr(found)


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({}, r"No master key: set TIDINGS_SECRETS__MASTER_KEY_FILE.*tidings secrets new-master-key"),
        (
            {"master_key_file": "/nowhere/master.key"},
            r"MASTER_KEY_FILE names /nowhere/master.key, which cannot be read: No such",
        ),
        ({"master_key": TEXT[:-8]}, r"TIDINGS_SECRETS__MASTER_KEY is not a master key\. It must be 32 bytes in base64"),
        ({"master_key": "hush, not base64"}, r"TIDINGS_SECRETS__MASTER_KEY is not a master key"),
        ({"master_key_command": "/nowhere/kms decrypt"}, r"TIDINGS_SECRETS__MASTER_KEY_COMMAND cannot be run"),
        ({"master_key_command": "false"}, r"MASTER_KEY_COMMAND failed with status 1"),
        ({"master_key_command": "ls /nowhere"}, r"failed with status 2: .*/nowhere"),
        ({"master_key_command": "echo hush"}, r"MASTER_KEY_COMMAND is not a master key"),
    ],
)
def test_what_is_missing_or_wrong_is_said_by_the_setting_s_name(values: dict[str, str], words: str) -> None:
    with pytest.raises(OperatorError, match=words) as error:
        master_key.read(given(**values))
    assert "hush" not in str(error.value), "what was given may be the key with a typing mistake"


def test_raw_bytes_of_a_command_are_no_master_key_and_none_of_them_is_repeated() -> None:
    command = f'{sys.executable} -c "import sys; sys.stdout.buffer.write(bytes([0xf3]) * 32)"'
    with pytest.raises(OperatorError, match="MASTER_KEY_COMMAND is not a master key") as error:
        master_key.read(given(master_key_command=command))
    assert "f3" not in str(error.value)


def test_a_file_that_every_user_can_read_is_a_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    file = tmp_path / "master.key"
    master_key.make_file(file)
    master_key.from_file(file, "FILE")
    assert caplog.messages == []
    file.chmod(0o644)
    master_key.from_file(file, "FILE")
    [sentence] = caplog.messages
    assert f"chmod 600 {file}" in sentence
    assert file.read_text().strip() not in sentence


def test_two_ways_at_once_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TIDINGS_SECRETS__MASTER_KEY", TEXT)
    monkeypatch.setenv("TIDINGS_SECRETS__MASTER_KEY_COMMAND", "true")
    with pytest.raises(OperatorError, match="set one of master_key_file, master_key and master_key_command"):
        settings.load()


def test_it_is_masked_among_the_settings_and_travels_to_workers_as_itself(tmp_path: Path) -> None:
    file = tmp_path / "master.key"
    master_key.make_file(file)
    loaded = settings.Settings(secrets={"master_key_file": file, "master_key": ""})
    with_key = loaded.model_copy(update={"secrets": keyring.resolved(loaded.secrets)})
    text = file.read_text().strip()
    assert text not in repr(with_key) + str(settings.masked(with_key))
    assert text in settings.for_workers(with_key)


def test_a_file_is_made_for_its_owner_alone_and_never_overwritten(tmp_path: Path) -> None:
    file = tmp_path / "master.key"
    before = os.umask(0)
    try:
        master_key.make_file(file)
    finally:
        os.umask(before)
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    made = file.read_bytes()
    with pytest.raises(OperatorError, match="never overwritten"):
        master_key.make_file(file)
    assert file.read_bytes() == made
    assert os.listdir(tmp_path) == ["master.key"]


def test_a_data_key_is_unwrapped_only_under_its_own_id_and_master_key() -> None:
    master, one, two = MasterKey(KEY), uuid.uuid4(), uuid.uuid4()
    wrapped = master.wrap(one, b"data key")
    assert master.unwrap(one, wrapped) == b"data key"
    for wrong, id_ in ((master, two), (MasterKey(KEY[::-1]), one)):
        with pytest.raises(OperatorError, match="cannot be unwrapped"):
            wrong.unwrap(id_, wrapped)
