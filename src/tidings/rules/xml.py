"""Rules as tenants write them: the NotificationConfiguration document of the S3 API.

Strict in what is read: what is not understood is refused, not skipped, for a rule that is dropped in silence shows only
when an event is missed. Names may carry the S3 namespace or none.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from xml.etree.ElementTree import Element, TreeBuilder
from xml.sax.saxutils import escape

from defusedxml.common import DefusedXmlException
from defusedxml.ElementTree import ParseError, XMLParser

from tidings.errors import CallerError
from tidings.events.arn import Address, SqsQueue
from tidings.events.arn import parse as address
from tidings.events.profiles import AWS, Profile
from tidings.rules.model import KeyFilter, Rule, derived_id, event_problems, filter_problems, id_problems, invalid
from tidings.rules.overlaps import problems_together
from tidings.rules.problems import refuse

NAMESPACE = "http://s3.amazonaws.com/doc/2006-03-01/"

MAX_BYTES = 256 * 1024
MAX_DEPTH = 16
MAX_ELEMENTS = 4000

_ROOT = "NotificationConfiguration"
_OTHER_DESTINATIONS = ("CloudFunctionConfiguration", "EventBridgeConfiguration")
_KINDS = {"TopicConfiguration": "Topic", "QueueConfiguration": "Queue"}
"""The kinds of configuration, and the element of each that has the ARN: queues have one kind, everything else the other."""

_ANY, _OPTIONAL, _ONE, _SOME = (0, MAX_ELEMENTS), (0, 1), (1, 1), (1, MAX_ELEMENTS)
_SHAPE = {
    _ROOT: dict.fromkeys((*_KINDS, *_OTHER_DESTINATIONS), _ANY),
    **{name: {"Id": _OPTIONAL, arn: _ONE, "Event": _SOME, "Filter": _OPTIONAL} for name, arn in _KINDS.items()},
    "Filter": {"S3Key": _OPTIONAL},
    "S3Key": {"FilterRule": _ANY},
    "FilterRule": {"Name": _ONE, "Value": _ONE},
}
"""What may stand inside what, and how often. An element that is not listed holds text only."""


def parse(body: bytes, profile: Profile = AWS) -> list[Rule]:
    """The rules of a document, or one CallerError that names everything that is wrong with it."""
    root = _read(body)
    if root.tag != _ROOT:
        raise _malformed(f"The document is a <{_shown(root.tag)}>. Send a <{_ROOT}>.")
    problems = [*_misshapen(root), *_unsupported(root)]
    configurations = [element for element in root if element.tag in _KINDS]
    rules = []
    for number, configuration in enumerate(configurations, start=1):
        own: list[CallerError] = []
        rule = _rule(configuration, profile, own)
        problems += [_placed(problem, configuration.tag, number) for problem in own] if len(configurations) > 1 else own
        rules += [rule] if rule is not None else []
    problems += problems_together(rules, profile)
    refuse(problems)
    return rules


def _placed(problem: CallerError, name: str, number: int) -> CallerError:
    return CallerError(problem.code, f"{name} {number}: {problem.message}", **problem.elements)


def render(rules: Sequence[Rule]) -> bytes:
    """The document for these rules. Text is written so that a reader gets back exactly what was stored."""
    inner = "".join(_rendered(rule) for rule in rules)
    return f'<?xml version="1.0" encoding="UTF-8"?>\n<{_ROOT} xmlns="{NAMESPACE}">{inner}</{_ROOT}>'.encode()


class _Builder(TreeBuilder):
    """Keeps to the limits while the document is read, and takes the namespace off the names that have ours."""

    def __init__(self) -> None:
        super().__init__()
        self._depth = 0
        self._elements = 0

    def start(self, tag: str, attrs: dict[str, str], /) -> Element:
        self._depth += 1
        self._elements += 1
        if self._depth > MAX_DEPTH:
            raise _malformed(f"<{_shown(tag)}> is nested too deep. Keep to {MAX_DEPTH} levels.")
        if self._elements > MAX_ELEMENTS:
            raise _malformed(f"The document has more than {MAX_ELEMENTS} elements. Send fewer.")
        return super().start(tag.removeprefix(f"{{{NAMESPACE}}}"), attrs)

    def end(self, tag: str, /) -> Element:
        self._depth -= 1
        return super().end(tag.removeprefix(f"{{{NAMESPACE}}}"))


def _read(body: bytes) -> Element:
    if len(body) > MAX_BYTES:
        raise _malformed(f"The document has {len(body)} bytes. Keep to {MAX_BYTES}.")
    if not _is_utf8(body):
        raise _malformed("The document is not UTF-8. Send it in UTF-8.")
    parser = XMLParser(target=_Builder(), encoding="utf-8", forbid_dtd=True)
    parser.parser.XmlDeclHandler = _judge_declaration
    try:
        parser.feed(body)
        root: Element = parser.close()
    except DefusedXmlException:
        raise _malformed("The document has a DOCTYPE. Send it without.") from None
    except ParseError as error:
        raise _malformed(f"The XML is not well-formed: {error}.") from None
    return root


def _is_utf8(body: bytes) -> bool:
    """The parser would see for itself that a document is UTF-16 and read it, whatever encoding it is told to expect."""
    try:
        return "\0" not in body.decode("utf-8")
    except UnicodeDecodeError:
        return False


def _judge_declaration(_version: str, encoding: str | None, _standalone: int) -> None:
    if encoding and encoding.lower() != "utf-8":
        raise _malformed(f"The document says that it is {_shown(encoding)}. Send it in UTF-8.")


def _misshapen(element: Element) -> Iterator[CallerError]:
    """Everything below an element that does not belong where it stands."""
    name, shape = element.tag, _SHAPE.get(element.tag, {})
    for attribute in element.attrib:
        yield _malformed(f"<{name}> has the attribute {_shown(attribute)}, which is not known here. Leave it out.")
    for child, (least, most) in shape.items():
        count = len(element.findall(child))
        if count < least:
            yield _malformed(f"<{name}> has no <{child}>. Add one.")
        if count > most:
            yield _malformed(f"<{name}> has {count} <{child}>. Keep one.")
    between = "".join(text or "" for text in [element.text, *(child.tail for child in element)])
    if shape and between.strip():
        yield _malformed(f"<{name}> has the text {_shown(between.strip())!r} between its elements. Leave it out.")
    for inner in element:
        if inner.tag not in shape:
            yield _malformed(f"<{_shown(inner.tag)}> is not known inside <{name}>. Leave it out.")
        elif inner.tag not in _OTHER_DESTINATIONS:
            yield from _misshapen(inner)


def _unsupported(root: Element) -> Iterator[CallerError]:
    for name in _OTHER_DESTINATIONS:
        if root.find(name) is not None:
            yield invalid(name, "", f"<{name}> cannot be served: send to a topic or to a queue.")


def _rule(configuration: Element, profile: Profile, problems: list[CallerError]) -> Rule | None:
    """The rule that a configuration describes; None where something was wrong, which is then among the problems.

    What `_misshapen` has named already (a missing element, a second one) is passed over here.
    """
    destination = _destination(configuration, problems)
    prefix, suffix = _filter(configuration, problems)
    config_id = configuration.findtext("Id", "")
    events = tuple(event.text or "" for event in configuration.findall("Event"))
    problems += filter_problems(prefix, suffix)
    problems += id_problems(config_id) if config_id else ()
    problems += event_problems(events, profile) if events else ()
    if problems or destination is None or not events:
        return None
    key_filter = KeyFilter(prefix, suffix)
    return Rule(config_id or derived_id(destination, events, key_filter), destination, events, key_filter)


def _destination(configuration: Element, problems: list[CallerError]) -> Address | None:
    name = _KINDS[configuration.tag]
    arn = configuration.findtext(name)
    if arn is None:
        return None
    try:
        found = address(arn)
    except CallerError as problem:
        problems.append(CallerError(problem.code, problem.message, **(problem.elements | {"ArgumentName": name})))
        return None
    if isinstance(found, SqsQueue) != (name == "Queue"):
        other = "QueueConfiguration" if name == "Topic" else "TopicConfiguration"
        problems.append(invalid(name, arn, f"{arn[:200]} does not belong into a {configuration.tag}. Send a <{other}>."))
        return None
    return found


def _filter(configuration: Element, problems: list[CallerError]) -> tuple[str, str]:
    """Prefix and suffix, empty where not set."""
    found: dict[str, list[str]] = {"prefix": [], "suffix": []}
    for filter_rule in configuration.findall("Filter/S3Key/FilterRule"):
        written = filter_rule.findtext("Name", "")
        name, value = written.lower(), filter_rule.findtext("Value", "")
        if name in found:
            found[name].append(value)
        elif filter_rule.find("Name") is not None:
            sentence = f"The filter rule name must be either prefix or suffix, not {_shown(written)!r}."
            problems.append(invalid("FilterRule.Name", written, sentence))
    for name, values in found.items():
        if len(values) > 1:
            sentence = f"The filter has {len(values)} {name} rules. Only one {name} can be set."
            problems.append(invalid("FilterRule.Name", name, sentence))
    prefix, suffix = (next(iter(values), "") for values in found.values())
    return prefix, suffix


def _rendered(rule: Rule) -> str:
    filters = {"prefix": rule.filter.prefix, "suffix": rule.filter.suffix}
    filter_rules = "".join(
        f"<FilterRule>{_element('Name', name)}{_element('Value', value)}</FilterRule>"
        for name, value in filters.items()
        if value
    )
    key_filter = f"<Filter><S3Key>{filter_rules}</S3Key></Filter>" if filter_rules else ""
    events = "".join(_element("Event", event) for event in rule.events)
    name = "QueueConfiguration" if isinstance(rule.destination, SqsQueue) else "TopicConfiguration"
    head = _element("Id", rule.config_id) + _element(_KINDS[name], rule.destination.arn)
    return f"<{name}>{head}{events}{key_filter}</{name}>"


def _element(name: str, text: str) -> str:
    # a reader turns a bare carriage return into a line feed
    return f"<{name}>{escape(text, {chr(13): '&#13;'})}</{name}>"


def _shown(text: str) -> str:
    return text if len(text) <= 100 else f"{text[:100]}…"


def _malformed(sentence: str) -> CallerError:
    return CallerError("MalformedXML", sentence)
