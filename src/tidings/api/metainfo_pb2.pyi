from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class RequestHeader(_message.Message):
    __slots__ = ("api_key",)
    API_KEY_FIELD_NUMBER: _ClassVar[int]
    api_key: bytes
    def __init__(self, api_key: _Optional[bytes] = ...) -> None: ...

class PutBucketNotificationConfigurationRequest(_message.Message):
    __slots__ = ("header", "name", "configuration")
    HEADER_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    CONFIGURATION_FIELD_NUMBER: _ClassVar[int]
    header: RequestHeader
    name: bytes
    configuration: NotificationConfiguration
    def __init__(self, header: _Optional[_Union[RequestHeader, _Mapping]] = ..., name: _Optional[bytes] = ..., configuration: _Optional[_Union[NotificationConfiguration, _Mapping]] = ...) -> None: ...

class PutBucketNotificationConfigurationResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class GetBucketNotificationConfigurationRequest(_message.Message):
    __slots__ = ("header", "name")
    HEADER_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    header: RequestHeader
    name: bytes
    def __init__(self, header: _Optional[_Union[RequestHeader, _Mapping]] = ..., name: _Optional[bytes] = ...) -> None: ...

class GetBucketNotificationConfigurationResponse(_message.Message):
    __slots__ = ("configuration",)
    CONFIGURATION_FIELD_NUMBER: _ClassVar[int]
    configuration: NotificationConfiguration
    def __init__(self, configuration: _Optional[_Union[NotificationConfiguration, _Mapping]] = ...) -> None: ...

class NotificationConfiguration(_message.Message):
    __slots__ = ("id", "topic_name", "events", "filter")
    ID_FIELD_NUMBER: _ClassVar[int]
    TOPIC_NAME_FIELD_NUMBER: _ClassVar[int]
    EVENTS_FIELD_NUMBER: _ClassVar[int]
    FILTER_FIELD_NUMBER: _ClassVar[int]
    id: str
    topic_name: str
    events: _containers.RepeatedScalarFieldContainer[str]
    filter: FilterRule
    def __init__(self, id: _Optional[str] = ..., topic_name: _Optional[str] = ..., events: _Optional[_Iterable[str]] = ..., filter: _Optional[_Union[FilterRule, _Mapping]] = ...) -> None: ...

class FilterRule(_message.Message):
    __slots__ = ("prefix", "suffix")
    PREFIX_FIELD_NUMBER: _ClassVar[int]
    SUFFIX_FIELD_NUMBER: _ClassVar[int]
    prefix: str
    suffix: str
    def __init__(self, prefix: _Optional[str] = ..., suffix: _Optional[str] = ...) -> None: ...
