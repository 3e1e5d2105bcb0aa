"""Lanes on paper: the rules of delivery as a small model that one seed leads through one random interleaving.

What is guaranteed, and why, zombies included:

1. *A cursor is earned.* Everything at or before a lane's cursor (a live lane's cursor is the stream's position) has
   arrived. Only the two end transactions move cursors, and each moves a lane no further than what its own sender saw
   confirmed from that lane's cursor on. Their checks see to it that a lane never becomes live, nor stays live while
   the position moves, on the word of a round that did not deliver to it.
2. *A change is sent only after the one before it.* Whoever sends change n of a key, be it a round, catch-up or a
   zombie, has had n-1 of that key confirmed in this very round, or began at a cursor at or after n-1, which by (1) was
   earned when it was read. "Has arrived" never becomes false again, so old knowledge is still true: this does not
   depend on the epoch, on who else is sending, or on how long the sender stood still.
3. Hence, whenever n is in the air, n-1 has arrived. However late n lands, and however many copies of it fly, the first
   landing of n comes after the first landing of n-1. A zombie may be ahead of the new stream, and may well be the one
   that makes a first delivery, but it is never ahead of the order: all it can add are first deliveries in the right
   order, and duplicates.

So the order of sends needs the discipline of (2) and no epoch; it is the transactions, (1), that need their checks: the
epoch, and the position from which a round began. Operators move lanes beside the stream (pause, resume): a transaction
leaves alone a lane that is not as it was read, and moves the rest. More rules are easily overlooked:

- the end of a round is fixed before the lanes are read: otherwise a lane that is born in between has a change in the
  round, is not part of it, and is carried past that change by the stream's position;
- the start of a round is known no later than the lanes are read: a lane that *was* live and a position as it *is* make
  a cursor that was never true, and the sends are out before any transaction can refuse them;
- a ready lane gets a round even if nothing new was written: otherwise its last changes wait for the next writer;
- a subscription is for changes that were written before it and are still to be read. Its lane begins behind, at the
  stream's position: a round that is under way has not seen it, must not send to it, and carries no lane past anything
  that it did not send.

Positions are plain integers in commit order here; that windows give such an order is tested with the change stream.
"""

from collections import Counter
from collections.abc import Generator
from dataclasses import dataclass, field
from random import Random

KEYS = "ab"
MOST_LANES = 3
MOST_PROCESSES = 3
NEAR = 2  # a lane this close to the stream's position is ready; more than 0, or rejoining would have no gap to lose

Steps = Generator[None, None, None]


@dataclass(frozen=True)
class Rules:
    """The rules as designed. Each can be broken, to show that it is needed and that the explorer would notice."""

    rejoin_at_own_cursor: bool = True
    one_end_transaction: bool = True
    one_in_flight_per_key: bool = True
    check_epoch: bool = True
    check_position: bool = True  # the stream's position is still where the round began
    check_lanes: bool = True  # the lanes of the round (or chunk) are still as they were read
    end_before_lanes: bool = True
    start_before_lanes: bool = True
    round_for_ready_lanes: bool = True
    subscribers_begin_behind: bool = True
    serve_only_lanes_seen: bool = True  # not those that were made while the round was under way


@dataclass(frozen=True)
class Change:
    position: int
    key: str
    lanes: frozenset[int]


@dataclass(frozen=True)
class Lane:
    state: str  # live, behind, ready or paused
    cursor: int = -1  # not used while live: then the stream's position is the cursor


class Database:
    """What is durable. Each method is one transaction."""

    def __init__(self, rules: Rules) -> None:
        self.rules = rules
        self.log: list[Change] = []
        self.position = 0
        self.epoch = 0
        self.lanes: dict[int, Lane] = {}

    def cursor(self, lane: int) -> int:
        return self.position if self.lanes[lane].state == "live" else self.lanes[lane].cursor

    def take_epoch(self) -> tuple[int, int]:
        self.epoch += 1
        return self.epoch, self.position

    def end_round(self, epoch: int, start: int, end: int, lanes: dict[int, Lane], reached: dict[int, int]) -> bool:
        """Moves the position and those lanes of the round that are still in its hands, or nothing."""
        if (self.rules.check_epoch and epoch != self.epoch) or (self.rules.check_position and start != self.position):
            return False
        self.position = end
        for lane, cursor in reached.items():
            now, read = self.lanes[lane], lanes.get(lane)
            if self.rules.check_lanes and (now.state not in ("live", "ready") or cursor < now.cursor):
                continue
            if cursor < end:
                self.lanes[lane] = Lane("behind", cursor)
            elif not self.rules.check_lanes or now.state == "live" or (read is not None and read.state == "ready"):
                self.lanes[lane] = Lane("live")
        return True

    def end_chunk(self, epoch: int, lane: int, read: Lane, cursor: int, complete: bool) -> bool:
        """Moves one lane that is behind, and declares it ready if it is near. One that is not as it was read stays."""
        if self.rules.check_epoch and epoch != self.epoch:
            return False
        if not self.rules.check_lanes or self.lanes[lane] == read:
            near = complete and self.position - cursor <= NEAR
            self.lanes[lane] = Lane("ready" if near else "behind", cursor)
        return True

    def pause(self, lane: int) -> None:
        self.lanes[lane] = Lane("paused", self.cursor(lane))

    def resume(self, lane: int) -> None:
        self.lanes[lane] = Lane("behind", self.lanes[lane].cursor)


@dataclass(eq=False)
class Flight:
    """One message on its way. It outlives its sender: neither a crash nor a timeout calls it back."""

    lane: int
    position: int
    epoch: int
    fate: str = "flying"  # then landed, or lost


@dataclass(eq=False)
class Process:
    """A stream's process: its memory, which may be old, and its two tasks, rounds and catch-up."""

    epoch: int
    position: int
    tasks: list[Steps] = field(default_factory=list)
    frozen: bool = False
    superseded: bool = False


class World:
    """One run. All chance comes from the seed, so the seed is the run; `trace` records it and changes nothing."""

    def __init__(self, rules: Rules, seed: int, trace: list[str] | None = None) -> None:
        self.rules, self.seed, self.trace = rules, seed, trace
        self.rng = Random(seed)
        self.db = Database(rules)
        self.processes: list[Process] = []
        self.air: list[Flight] = []
        self.arrived: dict[int, set[int]] = {}
        self.before: dict[tuple[int, int], int] = {}  # (lane, position) -> the key's position before it in this lane
        self.last_of_key: dict[tuple[int, str], int] = {}
        self.earned: dict[int, int] = {}  # the lanes' cursors after the last transaction
        self.faults: Counter[str] = Counter()
        self.seen: Counter[str] = Counter()
        self.failing = self.rng.choice((0.0, 0.05, 0.3))
        self.giving_up = self.rng.choice((0.0, 0.05, 0.2))

    # What may happen: writers, new lanes, processes that start and move, and the network.

    def write(self) -> None:
        lanes = frozenset(lane for lane in self.db.lanes if self.rng.random() < 0.8)
        change = Change(len(self.db.log) + 1, self.rng.choice(KEYS), lanes)
        self.db.log.append(change)
        for lane in lanes:
            self.before[lane, change.position] = self.last_of_key.get((lane, change.key), 0)
            self.last_of_key[lane, change.key] = change.position
        self.note("write", change.position, change.key, "for lanes", *sorted(lanes))

    def open_lane(self) -> None:
        """A rule for a new destination: its lane is born live, and later changes may go to it."""
        lane = len(self.db.lanes)
        if lane < MOST_LANES:
            self.db.lanes[lane] = Lane("live")
            self.arrived[lane] = {0}
            self.earned[lane] = self.db.position
            self.note("lane", lane, "is born at", self.db.position)

    def subscribe(self) -> None:
        """Somebody subscribes to a topic: what is still to be read is for them too, although it was written before."""
        lane, db = len(self.db.lanes), self.db
        if lane == MOST_LANES:
            return
        db.lanes[lane] = Lane("behind", db.position) if self.rules.subscribers_begin_behind else Lane("live")
        self.arrived[lane] = {0}
        self.earned[lane] = db.position
        for place, change in enumerate(db.log[db.position :], db.position):
            db.log[place] = Change(change.position, change.key, change.lanes | {lane})
            self.before[lane, change.position] = self.last_of_key.get((lane, change.key), 0)
            self.last_of_key[lane, change.key] = change.position
        self.seen["subscriptions to what is written"] += len(db.log) > db.position
        self.note("lane", lane, "subscribes at", db.position)

    def pause_or_resume(self, lane: int) -> None:
        paused = self.db.lanes[lane].state == "paused"
        (self.db.resume if paused else self.db.pause)(lane)
        self.seen["pauses"] += not paused
        self.note("lane", lane, "is resumed" if paused else "is paused", "at", self.db.cursor(lane))
        self.audit()

    def start(self) -> Process | None:
        """Nobody asks whether a stream is running: a second one by mistake is part of the game."""
        if len(self.processes) == MOST_PROCESSES:
            return None
        process = Process(*self.db.take_epoch())
        process.tasks = [self.rounds(process), self.catch_up(process)]
        self.processes.append(process)
        self.note("epoch", process.epoch, "starts at", process.position)
        return process

    def move(self, process: Process) -> None:
        if process.frozen:
            return
        self.seen["steps"] += 1
        task = self.rng.choice(process.tasks)
        if next(task, StopIteration) is StopIteration:
            process.tasks.remove(task)
            if not process.tasks:
                self.processes.remove(process)

    def land(self, flight: Flight) -> None:
        self.air.remove(flight)
        flight.fate = "lost" if self.rng.random() < self.failing else "landed"
        self.note("epoch", flight.epoch, "message", flight.position, flight.fate, "in lane", flight.lane)
        arrived = self.arrived[flight.lane]
        if flight.fate == "lost":
            return
        if flight.position in arrived:
            self.seen["duplicates"] += 1
            return
        arrived.add(flight.position)
        self.seen["first deliveries"] += 1
        self.seen["first deliveries by old epochs"] += flight.epoch != self.db.epoch
        if self.before[flight.lane, flight.position] not in arrived:
            self.blame("reordered", "change", flight.position, "in lane", flight.lane)

    # A stream's process. Each yield is a place where it may lose the processor, freeze or crash.

    def rounds(self, me: Process) -> Steps:
        db, rules = self.db, self.rules
        while not me.superseded:
            start, lanes = me.position, db.lanes.copy()
            if not rules.end_before_lanes:
                yield
            end = self.end_from(start)
            if rules.end_before_lanes:
                yield
                lanes = db.lanes.copy()
            yield
            if not rules.start_before_lanes:
                start, end = db.position, self.end_from(db.position)
            known = set(lanes)
            lanes = {lane: read for lane, read in lanes.items() if read.state in ("live", "ready")}
            ready = [lane for lane, read in lanes.items() if read.state == "ready"]
            if start == end and not (ready and rules.round_for_ready_lanes):
                continue
            starts = dict.fromkeys(lanes, start)
            if rules.rejoin_at_own_cursor:
                starts |= {lane: lanes[lane].cursor for lane in ready}
            self.note("epoch", me.epoch, "begins the round to", end, "from", starts)
            if not rules.serve_only_lanes_seen:
                yield
                made = [lane for lane in db.lanes if lane not in starts and lane not in known]
                starts |= {lane: self.rng.randint(start, end) for lane in made}  # a worker learns of it half-way
            reached = yield from self.deliver(me, starts, end)
            reached = {lane: cursor for lane, cursor in reached.items() if lane in lanes}
            yield
            if rules.one_end_transaction:
                counted = db.end_round(me.epoch, start, end, lanes, reached)
            else:
                counted = db.end_round(me.epoch, start, end, lanes, {})
                self.audit()
                yield
                counted = counted and db.end_round(me.epoch, end, end, {}, reached)
            self.ended(me, counted, reached)
            self.seen["rejoined"] += counted and any(reached[lane] == end for lane in ready)
            me.position = end
            yield

    def end_from(self, start: int) -> int:
        return min(len(self.db.log), start + self.rng.randint(1, 6))

    def catch_up(self, me: Process) -> Steps:
        db = self.db
        while not me.superseded:
            yield
            behind = [lane for lane, read in db.lanes.items() if read.state == "behind"]
            if not behind:
                continue
            lane = self.rng.choice(behind)
            read, end = db.lanes[lane], min(db.lanes[lane].cursor + self.rng.randint(1, 4), db.position)
            self.note("epoch", me.epoch, "begins a chunk of lane", lane, "from", read.cursor, "to", end)
            yield
            reached = yield from self.deliver(me, {lane: read.cursor}, end)
            yield
            counted = db.end_chunk(me.epoch, lane, read, reached[lane], complete=reached[lane] == end)
            self.ended(me, counted, reached)

    def deliver(self, me: Process, starts: dict[int, int], end: int) -> Generator[None, None, dict[int, int]]:
        """Sends (start, end] of each lane, all lanes and keys side by side; returns how far each lane is confirmed."""
        todo = {lane: [c for c in self.db.log[start:end] if lane in c.lanes] for lane, start in starts.items()}
        queues: dict[tuple[int, str], tuple[list[int], list[Flight]]] = {}  # what waits, and what is in flight
        for lane, changes in todo.items():
            for change in changes:
                queues.setdefault((lane, change.key), ([], []))[0].append(change.position)
        confirmed: set[tuple[int, int]] = set()
        at_once = 1 if self.rules.one_in_flight_per_key else 2
        while queues:
            queue = self.rng.choice(list(queues))
            waiting, flying = queues[queue]
            if waiting and len(flying) < at_once:
                flying.append(Flight(queue[0], waiting.pop(0), me.epoch))
                self.air.append(flying[-1])
            elif self.is_confirmed(flight := self.rng.choice(flying)):
                flying.remove(flight)
                confirmed.add((flight.lane, flight.position))
                if not waiting and not flying:
                    del queues[queue]
            else:
                del queues[queue]  # failed or unconfirmed: no more of this key in this round
            yield
        return {
            lane: next((c.position - 1 for c in changes if (lane, c.position) not in confirmed), end)
            for lane, changes in todo.items()
        }

    def is_confirmed(self, flight: Flight) -> bool:
        """Waits for the outcome, or gives up on it: then the message may have landed, may land later, or never."""
        if self.rng.random() < self.giving_up:
            self.seen["unconfirmed"] += 1
            return False
        if flight.fate == "flying":
            self.land(flight)
        return flight.fate == "landed"

    def ended(self, me: Process, counted: bool, reached: dict[int, int]) -> None:
        self.note("epoch", me.epoch, "ends and counts:" if counted else "ends and is refused:", reached)
        self.note("     the stream is at", self.db.position, self.db.lanes)
        self.audit()
        if not counted:
            self.seen["refused"] += 1
            me.superseded = True  # its other task sends on until it notices, as threads do

    # What is held against a run.

    def at_rest(self) -> bool:
        return self.db.position == len(self.db.log) and all(lane.state == "live" for lane in self.db.lanes.values())

    def audit(self) -> None:
        """After each transaction: no cursor went back, passed the stream, or passed a change that has not arrived."""
        for lane, was in self.earned.items():
            now = self.earned[lane] = self.db.cursor(lane)
            if now < was:
                self.blame("went back", "lane", lane, "from", was, "to", now)
            if now > self.db.position:
                self.blame("ahead of the stream", "lane", lane, "at", now)
            for change in self.db.log[was:now]:
                if lane in change.lanes and change.position not in self.arrived[lane]:
                    self.blame("not earned", "change", change.position, "in lane", lane)

    def audit_the_end(self) -> None:
        if not self.at_rest():
            self.blame("stuck", "at", self.db.position, self.db.lanes)
        for change in self.db.log:
            for lane in change.lanes:
                if change.position not in self.arrived[lane]:
                    self.blame("lost", "change", change.position, "in lane", lane)

    def blame(self, fault: str, *details: object) -> None:
        self.faults[fault] += 1
        self.note("***", fault + ":", *details)

    def note(self, *words: object) -> None:
        if self.trace is not None:
            self.trace.append(" ".join(map(str, words)))
