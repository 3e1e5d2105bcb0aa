"""The data folder of a running stack: another user of the machine can read nothing of it."""

from __future__ import annotations

import os
import subprocess
from ipaddress import ip_address
from pathlib import Path

import psutil
import pytest

from conftest import Running
from tidings.local.closing import close_to_others

_CANARY = b"nobody else may read this" * 1000
# `true` opens what it is given as its input, a file or a folder, and does nothing with it.
_OPENS = 'while IFS= read -r path; do if { true < "$path"; } 2>/dev/null; then echo "$path"; fi; done'


def _all_below(folder: Path) -> list[Path]:
    return [folder, *(Path(parent, name) for parent, below, files in os.walk(folder) for name in (*below, *files))]


def _readable_by_nobody(paths: list[Path]) -> list[str]:
    """Each path is tried by its full name: a folder that cannot be listed hides nothing from whoever knows the name."""
    names = "".join(f"{path}\n" for path in paths)
    done = subprocess.run(
        ["sh", "-c", _OPENS],
        input=names,
        user="nobody",
        group="nogroup",
        extra_groups=[],
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.splitlines()


def test_another_user_can_read_nothing_of_a_running_stack(stack: Running, tmp_path: Path) -> None:
    stack.s3().create_bucket(Bucket="closed")
    stack.s3().put_object(Bucket="closed", Key="blob", Body=_CANARY)
    paths = _all_below(stack.data)
    blobs = [path for path in paths if path.is_file() and path.parent.parent.name == "blobs"]
    assert any(path.read_bytes() == _CANARY for path in blobs)
    assert {path.stem for path in paths} >= {"api", "stream", "pubsub", "server", "credentials", "PG_VERSION"}
    loose = [str(path) for path in paths if path.stat().st_mode & 0o067]
    assert loose == []
    if os.geteuid() == 0:
        open_to_all = tmp_path / "open"  # the way to it is opened as well, so that the test can fail
        open_to_all.write_text("")
        for path in (open_to_all, *(parent for parent in tmp_path.parents if parent.is_relative_to("/tmp")), tmp_path):
            path.chmod(path.stat().st_mode | 0o055)
        of_processes = [Path("/proc", str(pid), name) for pid in stack.ready["pids"].values() for name in ("environ", "cwd/.")]
        assert _readable_by_nobody([*paths, *of_processes, open_to_all]) == [str(open_to_all)]


def test_what_a_stack_listens_on_is_reached_from_this_machine_alone(stack: Running) -> None:
    up = psutil.Process(stack.pid("up"))
    heard = {
        (socket.laddr.ip, socket.laddr.port)
        for process in (up, *up.children(recursive=True))
        for socket in process.net_connections("inet")
        if socket.status == psutil.CONN_LISTEN
    }
    assert {
        int(stack.ready[name].removesuffix("/metrics").rpartition(":")[2]) for name in ("s3", "grpc", "metrics", "pubsub")
    } <= {port for _, port in heard}
    assert [
        place for place in heard if not (getattr(ip_address(place[0]), "ipv4_mapped", None) or ip_address(place[0])).is_loopback
    ] == []


@pytest.mark.parametrize("mode", [0o755, 0o750, 0o701, 0o770])
def test_a_folder_that_was_open_is_closed_with_all_that_is_in_it(tmp_path: Path, mode: int) -> None:
    data = tmp_path / "data"
    (data / "logs").mkdir(parents=True)
    (data / "logs" / "api.log").write_text("")
    (tmp_path / "elsewhere").write_text("")
    (data / "link").symlink_to(tmp_path / "elsewhere")
    for path, loose in (
        (tmp_path / "elsewhere", 0o644),
        (data / "logs" / "api.log", 0o644),
        (data / "logs", 0o755),
        (data, mode),
    ):
        path.chmod(loose)
    close_to_others(data)
    modes = {path.name: path.lstat().st_mode & 0o777 for path in (data, data / "logs", data / "logs" / "api.log")}
    assert modes == {"data": 0o700, "logs": 0o700, "api.log": 0o600}
    assert (tmp_path / "elsewhere").stat().st_mode & 0o777 == 0o644
