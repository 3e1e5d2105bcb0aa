"""A subscription: a queue of messages with leases and deadlines, in order within an ordering key where that is wanted."""

from __future__ import annotations

import asyncio
import heapq
import itertools
from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from google.pubsub_v1 import types

from tidings.local.pubsub_limits import REQUEST_BYTES, check_deadline, invalid, missing

ReceivedMessage = types.ReceivedMessage.pb()


@dataclass(slots=True, eq=False)
class Entry:
    """One message in one subscription, from publish to acknowledgement."""

    number: int
    message: Any
    lane: Lane | None
    delivery: int = 0
    deadline: float = 0.0
    leases: Leases | None = None
    """Who holds the message; None while it waits in the queue."""

    @property
    def ack_id(self) -> str:
        return f"{self.number}-{self.delivery}"


Leases = dict[int, Entry]


@dataclass(slots=True, eq=False)
class Lane:
    """The messages of one ordering key. One batch is out at a time: the next goes when all of it is acknowledged."""

    key: str
    waiting: deque[Entry] = field(default_factory=deque)
    out: Leases = field(default_factory=dict)
    queued: bool = False


class Subscription:
    """A queue with leases. Everything happens on the event loop, between two awaits: there is nothing to lock."""

    def __init__(self, config: Any) -> None:
        self.config = config
        self._deleted = False
        self._numbers = itertools.count(1)
        self._unacked: Leases = {}
        self._ready: deque[Entry | Lane] = deque()
        self._lanes: dict[str, Lane] = {}
        # One row per batch, never taken out early: an entry's own `deadline` says whether the row still counts.
        self._deadlines: list[tuple[float, list[int]]] = []
        self._timer: asyncio.TimerHandle | None = None
        self._listeners: set[asyncio.Event] = set()

    @contextmanager
    def listening(self) -> Iterator[asyncio.Event]:
        """An event that is set whenever `take` may have something new to give."""
        event = asyncio.Event()
        self._listeners.add(event)
        try:
            yield event
        finally:
            self._listeners.discard(event)

    def delete(self) -> None:
        self._deleted = True
        self._wake()

    def check_alive(self) -> None:
        """For whoever waited: the name may be gone by now, or belong to a newer subscription."""
        if self._deleted:
            raise missing("subscription", self.config.name)

    def add(self, messages: Iterable[Any]) -> None:
        ordered = self.config.enable_message_ordering
        for message in messages:
            entry = Entry(next(self._numbers), message, None)
            self._unacked[entry.number] = entry
            if ordered and (key := message.ordering_key):
                entry.lane = lane = self._lanes.get(key) or self._lanes.setdefault(key, Lane(key))
                lane.waiting.append(entry)
                self._offer(lane)
            else:
                self._ready.append(entry)
        self._wake()

    def take(self, limit: int, seconds: float, leases: Leases) -> list[Any]:
        """Leases up to `limit` messages for `seconds`; a response stays below twice the size of the largest request."""
        taken: list[Entry] = []
        size = 0
        while self._ready and len(taken) < limit and size < REQUEST_BYTES:
            head = self._ready.popleft()
            if isinstance(head, Entry):
                if head.number in self._unacked:  # not acknowledged late, while it waited to be delivered again
                    taken.append(head)
                    size += len(head.message.data)
                continue
            head.queued = False
            while head.waiting and len(taken) < limit and size < REQUEST_BYTES:
                entry = head.waiting.popleft()
                head.out[entry.number] = entry
                taken.append(entry)
                size += len(entry.message.data)
        if not taken:
            return []
        for entry in taken:
            entry.delivery += 1
            entry.leases = leases
            leases[entry.number] = entry
        self._extend(taken, seconds)
        return [ReceivedMessage(ack_id=entry.ack_id, message=entry.message) for entry in taken]

    def acknowledge(self, ack_ids: Iterable[str]) -> None:
        """Forgets the messages. After its deadline an ack id stays good until the message is delivered again."""
        for entry in self._find(ack_ids):
            del self._unacked[entry.number]
            if entry.leases is not None:
                del entry.leases[entry.number]
            if (lane := entry.lane) is not None:
                del lane.out[entry.number]
                if lane.waiting:
                    self._offer(lane)
                elif not lane.out:
                    del self._lanes[lane.key]
        self._wake()

    def modify_deadline(self, ack_ids: Iterable[str], seconds: int) -> None:
        check_deadline(seconds, 0)
        leased = [entry for entry in self._find(ack_ids) if entry.leases is not None]
        if seconds == 0:
            self.give_back(leased)
        else:
            self._extend(leased, seconds)

    def give_back(self, entries: Iterable[Entry]) -> None:
        """Puts leased messages back at the front, oldest first; with an ordered one go those that came after it."""
        back: Leases = {}
        first: dict[Lane, int] = {}
        for entry in entries:
            back[entry.number] = entry
            if entry.lane is not None:
                first[entry.lane] = min(entry.number, first.get(entry.lane, entry.number))
        for lane, earliest in first.items():
            back.update((number, later) for number, later in lane.out.items() if number > earliest)
        for number in sorted(back, reverse=True):
            entry = back[number]
            if entry.leases is not None:
                del entry.leases[number]
                entry.leases = None
            if entry.lane is None:
                self._ready.appendleft(entry)
            else:
                # An ack for the delivery that was called off would leave a hole in the order of the next one.
                entry.delivery += 1
                del entry.lane.out[number]
                entry.lane.waiting.appendleft(entry)
                self._offer(entry.lane, first=True)
        self._wake()

    def _wake(self) -> None:
        for event in self._listeners:
            event.set()

    def _offer(self, lane: Lane, *, first: bool = False) -> None:
        if not lane.out and not lane.queued:
            lane.queued = True
            (self._ready.appendleft if first else self._ready.append)(lane)

    def _find(self, ack_ids: Iterable[str]) -> Iterable[Entry]:
        """The entries that these ack ids still stand for, each once. Old ids are passed over, as Google does."""
        found: Leases = {}
        for ack_id in ack_ids:
            try:
                entry = self._unacked.get(int(ack_id.partition("-")[0]))
            except ValueError:
                sentence = f"{ack_id[:100]!r} is not an ack id. Send back the ack_id that came with the message."
                raise invalid(sentence) from None
            if entry is not None and entry.ack_id == ack_id:
                found[entry.number] = entry
        return found.values()

    def _extend(self, entries: list[Entry], seconds: float) -> None:
        if not entries:
            return
        deadline = asyncio.get_running_loop().time() + seconds
        for entry in entries:
            entry.deadline = deadline
        heapq.heappush(self._deadlines, (deadline, [entry.number for entry in entries]))
        self._set_timer()

    def _set_timer(self) -> None:
        if self._timer is not None and (not self._deadlines or self._timer.when() > self._deadlines[0][0]):
            self._timer.cancel()
            self._timer = None
        if self._timer is None and self._deadlines:
            self._timer = asyncio.get_running_loop().call_at(self._deadlines[0][0], self._expire)

    def _expire(self) -> None:
        self._timer = None
        now = asyncio.get_running_loop().time()
        late: Leases = {}
        while self._deadlines and self._deadlines[0][0] <= now:
            for number in heapq.heappop(self._deadlines)[1]:
                entry = self._unacked.get(number)
                if entry is not None and entry.leases is not None and entry.deadline <= now:
                    late[number] = entry
        if late:
            self.give_back(late.values())
        self._set_timer()
