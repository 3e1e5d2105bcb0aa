"""The gRPC front: its messages are those of seed 000, its generated code is that of the .proto file, an error has a status."""

from __future__ import annotations

from pathlib import Path

import grpc
import psycopg
import psycopg_pool
import pytest
from google.protobuf.descriptor import FieldDescriptor
from grpc_tools import protoc
from pydantic import ValidationError

import tidings
from tidings.api import metainfo, metainfo_pb2
from tidings.api.settings import ApiSettings
from tidings.errors import STATUS, CallerError, Precondition

SOURCE = Path(tidings.__file__).parent.parent

APPENDIX = {
    "RequestHeader": [(1, "api_key", "bytes")],
    "PutBucketNotificationConfigurationRequest": [
        (1, "header", "RequestHeader"),
        (2, "name", "bytes"),
        (3, "configuration", "NotificationConfiguration"),
    ],
    "PutBucketNotificationConfigurationResponse": [],
    "GetBucketNotificationConfigurationRequest": [(1, "header", "RequestHeader"), (2, "name", "bytes")],
    "GetBucketNotificationConfigurationResponse": [(1, "configuration", "NotificationConfiguration")],
    "NotificationConfiguration": [
        (1, "id", "string"),
        (2, "topic_name", "string"),
        (3, "events", "repeated string"),
        (4, "filter", "FilterRule"),
    ],
    "FilterRule": [(1, "prefix", "string"), (2, "suffix", "string")],
}
"""The appendix "Protobuf Definition", written down once more by hand."""


def described(field: FieldDescriptor) -> tuple[int, str, str]:
    kinds = {FieldDescriptor.TYPE_BYTES: "bytes", FieldDescriptor.TYPE_STRING: "string"}
    kind = field.message_type.name if field.message_type else kinds[field.type]
    return field.number, field.name, f"repeated {kind}" if field.is_repeated else kind


def test_every_message_has_the_fields_of_the_appendix() -> None:
    found = metainfo_pb2.DESCRIPTOR.message_types_by_name
    assert {name: [described(field) for field in message.fields] for name, message in found.items()} == APPENDIX


def test_the_service_has_the_methods_of_the_appendix() -> None:
    (service,) = metainfo_pb2.DESCRIPTOR.services_by_name.values()
    assert (service.name, service.full_name) == ("Metainfo", metainfo.SERVICE)
    names = ["PutBucketNotificationConfiguration", "GetBucketNotificationConfiguration"]
    assert [method.name for method in service.methods] == names
    for method in service.methods:
        assert (method.input_type.name, method.output_type.name) == (f"{method.name}Request", f"{method.name}Response")
        assert not method.client_streaming
        assert not method.server_streaming


def test_the_generated_code_is_that_of_the_proto_file(tmp_path: Path) -> None:
    arguments = ["protoc", f"-I{SOURCE}", f"--python_out={tmp_path}", f"--pyi_out={tmp_path}", "tidings/api/metainfo.proto"]
    assert protoc.main(arguments) == 0
    for name in ("metainfo_pb2.py", "metainfo_pb2.pyi"):
        made, kept = tmp_path / "tidings/api" / name, SOURCE / "tidings/api" / name
        assert made.read_text() == kept.read_text(), f"{name} is old: metainfo.proto says how to make it"


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (CallerError("NotImplemented", "x"), "UNIMPLEMENTED"),
        (CallerError("AccessDenied", "x"), "PERMISSION_DENIED"),
        (CallerError("NoSuchBucket", "x"), "NOT_FOUND"),
        (CallerError("PreconditionFailed", "x"), "ABORTED"),
        (CallerError("InvalidAccessKeyId", "x"), "UNAUTHENTICATED"),
        (CallerError("InvalidArgument", "x"), "INVALID_ARGUMENT"),
        (CallerError("InvalidBucketName", "x"), "INVALID_ARGUMENT"),
        (CallerError("InvalidRequest", "x"), "INVALID_ARGUMENT"),
        (CallerError("MalformedXML", "x"), "INVALID_ARGUMENT"),
        (Precondition("InvalidArgument", "x"), "FAILED_PRECONDITION"),
        (Precondition("InvalidRequest", "x"), "FAILED_PRECONDITION"),
        (psycopg.OperationalError("x"), "UNAVAILABLE"),
        (psycopg_pool.PoolTimeout("x"), "UNAVAILABLE"),
        (psycopg_pool.PoolClosed("x"), "UNAVAILABLE"),
        (psycopg.ProgrammingError("x"), "INTERNAL"),
        (RuntimeError("x"), "INTERNAL"),
    ],
)
def test_each_error_has_its_status(error: Exception, status: str) -> None:
    assert metainfo.status(error, "Put", "ID")[0] is grpc.StatusCode[status]


def test_every_code_in_the_table_is_one_that_there_is() -> None:
    assert set(metainfo.STATUS) <= set(STATUS)


@pytest.mark.parametrize("character", ["x", "%", "\n", "ü", "😀"])
def test_a_long_message_fits_into_the_headers_of_an_answer(character: str) -> None:
    short = metainfo.short("begins " + character * 20_000)
    assert short.startswith(f"begins {character}")
    assert short.endswith("…")
    encoded = sum(1 if 32 <= byte < 127 and byte != 37 else 3 for byte in short.encode())
    assert 5_900 < encoded <= 6_100
    assert metainfo.short(character * 400) == character * 400


def test_one_port_is_not_given_to_both_fronts() -> None:
    with pytest.raises(ValidationError, match="grpc_port is 9000, as is port"):
        ApiSettings(port=9000, grpc_port=9000)
    assert ApiSettings(port=0, grpc_port=0).grpc_port == 0, "by default gRPC is not served"
