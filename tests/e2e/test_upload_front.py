"""`/api/uploads` as a client sees it: one put, the list, the removal, and what is refused."""

from __future__ import annotations

import contextlib
import http.client
import json
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from urllib.parse import quote

import httpx
import psutil
import pytest
from s3_server import Server, s3_server
from upload_place import Place, front, key_for, place

import gate
from conftest import fresh_database
from tidings.access.macaroons import Caveat
from tidings.consumers.uploads.consuming import Outcome
from tidings.local.postgres import Postgres
from waiting import until

MOST = 30_000_000
_PAGES = {"TIDINGS_API__CORS_ORIGINS": '["https://app.example"]'}


@pytest.fixture(scope="module")
def server(postgres: Postgres, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    settings = {"TIDINGS_API__WORKERS": "1", "TIDINGS_BUCKET_EVENTING__DESTINATIONS": '["queue"]'}
    with s3_server(fresh_database(postgres, "upload_front"), tmp_path_factory.mktemp("front"), **settings) as running:
        yield running


@pytest.fixture(scope="module")
def made(server: Server) -> Place:
    found = place(server, "front-uploads")
    found.clean()
    return found


@pytest.fixture(scope="module")
def served(made: Place, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[httpx.Client, int]]:
    with front(made, tmp_path_factory.mktemp("served"), TIDINGS_UPLOADS__MAX_BYTES=str(MOST), **_PAGES) as (client, process):
        yield client, process.pid


@pytest.fixture
def client(served: tuple[httpx.Client, int]) -> httpx.Client:
    return served[0]


def posted(client: httpx.Client, name: str, content: bytes, kind: str = "text/plain", **more: object) -> httpx.Response:
    return client.post("/api/uploads", data={"name": name}, files={"file": ("file.bin", content, kind)}, **more)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["my-report", "folder/my report.pdf", "Übersicht  (2).txt", '=?a"b%2F+&.txt', "日本"])
def test_a_post_is_one_put_with_metadata_and_content_type_and_answers_name_and_size(
    client: httpx.Client, made: Place, name: str
) -> None:
    answer = posted(client, name, b"content", "application/pdf")
    assert (answer.status_code, answer.json()) == (200, {"success": True, "name": name, "size": 7})
    key = f"{made.server.project}/{name}"
    found = made.s3.get_object(Bucket=made.bucket, Key=key)
    assert (found["Body"].read(), found["ContentType"]) == (b"content", "application/pdf")
    assert found["Metadata"]["organizationid"] == made.server.project
    made.notify(key)
    assert made.consume() == {Outcome.RECORDED: 1}
    assert (made.server.project, name) in made.rows(), "the metadata that the front writes is what the consumer reads"
    assert client.delete(f"/api/uploads/{quote(name)}").json() == {"success": True, "name": name}


def test_between_the_put_and_its_notification_the_list_does_not_have_it(client: httpx.Client, made: Place) -> None:
    """Seed 004, "Eventual consistency gap"."""
    assert posted(client, "gap", b"x").status_code == 200
    assert "gap" not in [each["name"] for each in client.get("/api/uploads").json()["uploads"]]
    made.notify(f"{made.server.project}/gap")
    made.consume()
    [row] = [each for each in client.get("/api/uploads").json()["uploads"] if each["name"] == "gap"]
    [at] = [at for (_, name), at in made.rows().items() if name == "gap"]
    assert row == {"name": "gap", "createdAt": int(at.timestamp() * 1000)}
    assert client.delete("/api/uploads/gap").status_code == 200
    assert "gap" not in [each["name"] for each in client.get("/api/uploads").json()["uploads"]]


def test_the_list_comes_in_pages_and_an_organisation_sees_and_removes_only_its_own(client: httpx.Client, made: Place) -> None:
    other, key = key_for(made.server, "other")
    for organisation in (made.server.project, other):
        for name in ("p-1", "p-2", "p-3"):
            made.notify(made.upload(organisation, name))
    assert made.consume(6) == {Outcome.RECORDED: 6}
    theirs = {"authorization": f"Bearer {key}"}
    first = client.get("/api/uploads", params={"limit": 2}, headers=theirs).json()
    assert ([each["name"] for each in first["uploads"]], first["next"]) == (["p-1", "p-2"], "p-2")
    last = client.get("/api/uploads", params={"limit": 2, "after": first["next"]}, headers=theirs).json()
    assert ([each["name"] for each in last["uploads"]], last["next"]) == (["p-3"], None)
    assert client.delete("/api/uploads/p-1", headers=theirs).status_code == 200
    assert (other, "p-1") not in made.rows()
    assert (made.server.project, "p-1") in made.rows()
    made.s3.head_object(Bucket=made.bucket, Key=f"{made.server.project}/p-1")
    for name in ("p-1", "p-2", "p-3"):
        client.delete(f"/api/uploads/{name}")


def test_removing_what_is_not_there_is_no_mistake(client: httpx.Client) -> None:
    assert client.delete("/api/uploads/never").json() == {"success": True, "name": "never"}


def test_a_large_file_is_not_held_in_memory(served: tuple[httpx.Client, int], made: Place) -> None:
    client, pid = served

    def peak() -> int:
        lines = [
            line
            for process in psutil.Process(pid).children(recursive=True)
            for line in Path(f"/proc/{process.pid}/status").read_text().splitlines()
        ]
        return max(int(line.split()[1]) for line in lines if line.startswith("VmHWM")) * 1024

    posted(client, "small", b"x")
    before, size = peak(), MOST - 1000
    assert posted(client, "large", bytes(size)).json() == {"success": True, "name": "large", "size": size}
    assert made.s3.head_object(Bucket=made.bucket, Key=f"{made.server.project}/large")["ContentLength"] == size
    assert peak() - before < size / 2


BOUNDARY = {"content-type": "multipart/form-data; boundary=b"}
NAME = b'--b\r\ncontent-disposition: form-data; name="name"\r\n\r\nn\r\n'
FILE = b'--b\r\ncontent-disposition: form-data; name="file"; filename="f"\r\n\r\nx\r\n'


@pytest.mark.parametrize(
    ("content", "headers", "status", "words"),
    [
        (b"{}", {"content-type": "application/json"}, 400, "Send a form"),
        (b"", {}, 400, "Send a form"),
        (NAME + FILE, {"content-type": "multipart/form-data"}, 400, "boundary"),
        (NAME + b"--b--", BOUNDARY, 400, "exactly one file"),
        (FILE + b"--b--", BOUNDARY, 400, "no field name in front of the file"),
        (FILE + NAME + b"--b--", BOUNDARY, 400, "send name first"),
        (NAME + NAME + FILE + b"--b--", BOUNDARY, 400, "comes twice"),
        (NAME + FILE, BOUNDARY, 400, "ends before its last boundary"),
        (NAME.replace(b"\r\nn\r\n", b"\r\n../n\r\n") + FILE + b"--b--", BOUNDARY, 400, "cannot be the name"),
        (NAME + FILE.replace(b'; filename="f"', b"").replace(b"x", b"") + b"--b--", BOUNDARY, 400, "No file was chosen"),
        (NAME + FILE.replace(b"\r\n\r\nx", "\r\ncontent-type: ü\r\n\r\nx".encode()) + b"--b--", BOUNDARY, 400, "content type"),
    ],
)
def test_a_bad_request_is_told_what_is_wrong_and_stores_nothing(
    client: httpx.Client, made: Place, content: bytes, headers: dict[str, str], status: int, words: str
) -> None:
    answer = client.post("/api/uploads", content=content, headers=headers)
    assert (answer.status_code, answer.json()["success"]) == (status, False)
    assert words in answer.json()["error"]["message"]
    assert "Contents" not in made.s3.list_objects_v2(Bucket=made.bucket, Prefix=f"{made.server.project}/n")


def test_a_file_that_is_too_large_is_refused_whether_or_not_its_length_was_announced(client: httpx.Client, made: Place) -> None:
    url = client.base_url
    waiting = http.client.HTTPConnection(url.host, url.port or 80, timeout=60)
    length = {"content-length": str(MOST + 100_000), "expect": "100-continue"}
    waiting.putrequest("POST", "/api/uploads")
    for name, value in {**BOUNDARY, **length, "authorization": client.headers["authorization"]}.items():
        waiting.putheader(name, value)
    waiting.endheaders()
    with contextlib.closing(waiting):
        announced = waiting.getresponse()
        assert (announced.status, json.loads(announced.read())["error"]["code"]) == (413, "TooLarge"), "before it was sent"

    def pieces() -> Iterator[bytes]:
        yield NAME.replace(b"\r\nn\r\n", b"\r\nhuge\r\n") + FILE.removesuffix(b"x\r\n")
        for _ in range(MOST // 1_000_000 + 1):
            yield bytes(1_000_000)
        yield b"\r\n--b--"

    streamed = client.post("/api/uploads", content=pieces(), headers=BOUNDARY)
    assert (streamed.status_code, streamed.json()["error"]["code"]) == (413, "TooLarge")
    assert "Contents" not in made.s3.list_objects_v2(Bucket=made.bucket, Prefix=f"{made.server.project}/huge")


@pytest.mark.parametrize("authorization", ["", "Bearer", "Bearer nonsense", "Basic eDp4", "AWS4-HMAC-SHA256 x"])
def test_without_a_valid_key_nothing_is_served(client: httpx.Client, authorization: str) -> None:
    for method, path in (("POST", "/api/uploads"), ("GET", "/api/uploads"), ("DELETE", "/api/uploads/x")):
        answer = client.request(method, path, headers={"authorization": authorization})
        assert (answer.status_code, answer.json()["error"]["code"]) == (401, "Unauthorized")
        assert answer.headers["www-authenticate"] == "Bearer"


def test_a_key_does_what_it_was_made_for(client: httpx.Client, made: Place) -> None:
    def statuses(key: str) -> list[int]:
        headers = {"authorization": f"Bearer {key}"}
        calls = (
            posted(client, "mine", b"x", headers=headers),
            client.get("/api/uploads", headers=headers),
            client.delete("/api/uploads/mine", headers=headers),
        )
        return [each.status_code for each in calls]

    assert statuses(key_for(made.server, "", "write")[1]) == [200, 403, 403]
    assert statuses(key_for(made.server, "", "list")[1]) == [403, 200, 403]
    assert statuses(key_for(made.server, "", "delete")[1]) == [403, 403, 200]
    of_a_bucket = key_for(made.server, "", limit=Caveat(buckets=frozenset({"photos"})))[1]
    assert statuses(of_a_bucket) == [403, 403, 403], "it is for that bucket alone"


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/", 404),
        ("GET", "/api", 404),
        ("GET", "/api/uploadsx", 404),
        ("PUT", "/api/uploads", 405),
        ("DELETE", "/api/uploads", 405),
        ("GET", "/api/uploads/x", 405),
        ("DELETE", "/api/uploads/%ff", 400),
        ("DELETE", "/api/uploads/a%2F%2Fb", 400),
        ("GET", "/api/uploads?limit=0", 400),
        ("GET", "/api/uploads?limit=1001", 400),
        ("GET", "/api/uploads?limit=x", 400),
        ("GET", "/api/uploads?after=%00", 400),
        ("GET", "/api/uploads?page=2", 400),
    ],
)
def test_what_is_not_served_is_a_clear_refusal(client: httpx.Client, method: str, path: str, status: int) -> None:
    answer = client.request(method, path)
    assert (answer.status_code, answer.json()["success"]) == (status, False)


def test_a_page_of_a_site_that_the_operator_names_may_ask(client: httpx.Client) -> None:
    asked = {"origin": "https://app.example", "access-control-request-method": "POST"}
    assert client.options("/api/uploads", headers=asked).headers["access-control-allow-origin"] == "https://app.example"
    seen = client.get("/api/uploads", headers={"origin": "https://app.example"})
    assert seen.headers["access-control-allow-origin"] == "https://app.example"


@contextlib.contextmanager
def held_puts(
    made: Place, folder: Path, project: str, **environment: str
) -> Iterator[tuple[httpx.Client, gate.Gate, Callable[[], int]]]:
    """A front whose store does not answer the puts of one project; and how many of them the store has so far."""

    def is_held(request: gate.Request) -> bool:
        return request.method == "PUT" and f"/{project}/" in request.path

    with gate.running(("127.0.0.1", made.server.port)) as way:
        way.choose = lambda request: "before" if is_held(request) else None
        with front(made, folder, TIDINGS_UPLOADS__ENDPOINT=way.endpoint, **environment) as (client, _):
            try:
                yield client, way, lambda: len({each.path for each in way.seen if is_held(each)})
            finally:
                way.release()


def test_an_upload_goes_on_beside_those_of_another_project_that_a_slow_store_holds(made: Place, tmp_path: Path) -> None:
    many, (other, key) = 40, key_for(made.server, "waits for the store")
    theirs = {"authorization": f"Bearer {key}"}
    with ThreadPoolExecutor(many) as threads, held_puts(made, tmp_path, other) as (client, way, held):
        begun = [threads.submit(posted, client, f"held-{each}", b"x", headers=theirs, timeout=None) for each in range(many)]
        until(lambda: held() > 5, "the store has some of them")
        assert posted(client, "beside", b"content").status_code == 200
        assert client.delete("/api/uploads/beside").status_code == 200
        assert client.delete("/api/uploads/none", headers=theirs).status_code == 200, "puts take no threads of removals"
        assert not any(each.done() for each in begun)
        way.release()
        assert [each.result().status_code for each in begun] == [200] * many


def test_a_project_has_so_many_bytes_on_disk_at_once(made: Place, tmp_path: Path) -> None:
    other, key = key_for(made.server, "fills the disk")
    theirs = {"authorization": f"Bearer {key}"}
    small = {"TIDINGS_UPLOADS__MAX_BYTES": "100000", "TIDINGS_UPLOADS__SPOOLED_BYTES_PER_PROJECT": "100000"}
    with ThreadPoolExecutor(1) as threads, held_puts(made, tmp_path, other, **small) as (client, way, held):
        begun = threads.submit(posted, client, "held", bytes(60_000), headers=theirs, timeout=None)
        until(lambda: held() == 1, "the store has it")
        refused = posted(client, "more", bytes(60_000), headers=theirs)
        assert (refused.status_code, refused.json()["error"]["code"], refused.headers["retry-after"]) == (503, "SlowDown", "1")
        assert posted(client, "beside", bytes(60_000)).status_code == 200
        way.release()
        assert begun.result().status_code == 200
        assert posted(client, "more", bytes(60_000), headers=theirs).status_code == 200
