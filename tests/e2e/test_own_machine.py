"""A running stack on its machine: what other users can read of it, other machines reach, and tenants' webhooks may call."""

from __future__ import annotations

import os
import subprocess
from ipaddress import ip_address
from pathlib import Path

import boto3
import psutil
import pytest
from botocore.exceptions import ClientError

from conftest import Running
from tidings.local.data_folder import close_to_others
from tidings.local.processes import free_port

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


def _mode(path: Path) -> int:
    """Nobody's business any more if it has gone meanwhile: the stack goes on."""
    try:
        return path.stat().st_mode
    except FileNotFoundError:
        return 0


def test_another_user_can_read_nothing_of_a_running_stack(stack: Running, tmp_path: Path) -> None:
    stack.s3().create_bucket(Bucket="closed")
    stack.s3().put_object(Bucket="closed", Key="blob", Body=_CANARY)
    paths = _all_below(stack.data)
    blobs = [path for path in paths if path.is_file() and path.parent.parent.name == "blobs"]
    assert any(path.read_bytes() == _CANARY for path in blobs)
    assert {path.stem for path in paths} >= {"api", "stream", "pubsub", "server", "credentials", "PG_VERSION"}
    assert [str(path) for path in paths if _mode(path) & 0o067] == []
    if os.geteuid() == 0:
        open_to_all = tmp_path / "open"  # the way to it is opened as well, so that the test can fail
        open_to_all.write_text("")
        for path in (open_to_all, *(parent for parent in tmp_path.parents if parent.is_relative_to("/tmp")), tmp_path):
            path.chmod(path.stat().st_mode | 0o055)
        of_processes = [Path("/proc", str(pid), name) for pid in stack.ready["pids"].values() for name in ("environ", "cwd/.")]
        assert _readable_by_nobody([*paths, *of_processes, open_to_all]) == [str(open_to_all)]


def _listening(*processes: psutil.Process) -> set[tuple[str, int]]:
    sockets = (socket for process in processes for socket in process.net_connections("inet"))
    return {(socket.laddr.ip, socket.laddr.port) for socket in sockets if socket.status == psutil.CONN_LISTEN}


def _ports(stack: Running) -> set[int]:
    """Those that its ready file tells of."""
    return {int(stack.ready[name].removesuffix("/metrics").rpartition(":")[2]) for name in ("s3", "grpc", "metrics", "pubsub")}


def test_no_port_of_the_stack_itself_can_be_a_webhook(stack: Running) -> None:
    """Whatever its processes listen on, the JVM's ports and the figures among them. A listener beside it can."""
    below = psutil.Process(stack.pid("up")).children(recursive=True)
    ports = {port for _, port in _listening(*below)}
    assert _listening(*(process for process in below if process.name() == "java"))
    assert _ports(stack) <= ports
    ready = stack.ready
    key = {"aws_access_key_id": ready["access_key_id"], "aws_secret_access_key": ready["secret_access_key"]}
    sns = boto3.client("sns", endpoint_url=ready["s3"], region_name=ready["region"], **key)
    topic = sns.create_topic(Name="own-ports")["TopicArn"]
    for port in sorted(ports):
        for host in ("127.0.0.1", "[::1]", "[::ffff:127.0.0.1]"):
            with pytest.raises(ClientError, match="this service itself listens there"):
                sns.subscribe(TopicArn=topic, Protocol="http", Endpoint=f"http://{host}:{port}/")
    sns.subscribe(TopicArn=topic, Protocol="http", Endpoint=f"http://127.0.0.1:{free_port()}/")
    sns.delete_topic(TopicArn=topic)


def test_what_a_stack_listens_on_is_reached_from_this_machine_alone(stack: Running) -> None:
    up = psutil.Process(stack.pid("up"))
    heard = _listening(up, *up.children(recursive=True))
    assert _ports(stack) <= {port for _, port in heard}
    addresses = {address: ip_address(address) for address, _ in heard}
    assert [text for text, each in addresses.items() if not (getattr(each, "ipv4_mapped", None) or each).is_loopback] == []


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
