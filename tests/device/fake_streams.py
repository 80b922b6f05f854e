"""A stream library without a GPU: runs work as late, as early and as interleaved as events allow, and finds races.

Two checks, independent of each other. *Order*: vector clocks (Lamport 1978; Mattern 1989) over the streams and the host
say, when an access to a buffer is queued, whether the earlier accesses it conflicts with are sure to be done by then;
one that is not is written to `races`, whatever order the work happens to run in. *Values*: work really runs at the
chosen moment, memory starts as garbage, and host memory that queued work still reads must not have changed.
"""

from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch

GARBAGE = 0x5A
HOST = "host"

Chooser = Callable[[int], int]
"""n -> one of 0 .. n - 1"""


class DeviceFault(RuntimeError):
    """What every call raises once the fake device has failed."""


@dataclass(eq=False)
class FakeEvent:
    library: "FakeStreams"
    timed: bool
    version: int = 0
    """How often it has been recorded."""
    done_version: int = 0
    clock: Counter[str] = field(default_factory=Counter)
    time: float = 0.0

    def done(self) -> bool:
        self.library.check_alive()
        self.library.run_some()
        is_done = self.done_version == self.version
        if is_done:
            self.library.clocks[HOST] |= self.clock
        return is_done

    def synchronize(self) -> None:
        if self.library.skips(HOST):
            return
        self.library.run_until(lambda: self.done_version == self.version)
        self.library.check_alive()
        self.library.clocks[HOST] |= self.clock

    def seconds_since(self, earlier: "FakeEvent") -> float:
        assert self.timed and earlier.timed and self.version and earlier.version
        assert self.done_version == self.version and earlier.done_version == earlier.version, "not done"
        if not self.clock <= self.library.clocks[HOST]:
            self.library.races.append("the host reads the time of an event that it has not waited for")
        return self.time - earlier.time


@dataclass(eq=False)
class _Accesses:
    """Who touched a buffer last: (agent, tick of its clock)."""

    writer: tuple[str, int] | None = None
    readers: list[tuple[str, int]] = field(default_factory=list)


class FakeStream:
    def __init__(self, library: "FakeStreams", name: str) -> None:
        self.library = library
        self.name = name
        self.queue: deque[tuple[Callable[[], bool], Callable[[], None]]] = deque()
        """(whether it may run, what runs)"""

    def _push(self, work: Callable[[], None], may_run: Callable[[], bool] = lambda: True) -> None:
        self.library.check_alive()
        self.queue.append((may_run, work))
        self.library.run_some()

    def _tick(self) -> Counter[str]:
        clocks = self.library.clocks
        clocks[self.name] |= clocks[HOST]  # work does not run before the host has queued it
        clocks[self.name][self.name] += 1
        return clocks[self.name]

    def launch(self, work: Callable[[], None], *, reads: Sequence[object], writes: Sequence[object]) -> None:
        clock = self._tick()
        self.library.note(self.name, clock, reads, writes)
        seen = [(array, array.copy()) for array in reads if isinstance(array, np.ndarray)]

        def run() -> None:
            for array, copy in seen:
                if not np.array_equal(array, copy):
                    self.library.races.append("the host rewrote memory that queued work still reads")
            work()

        self._push(run)

    def record(self, event: FakeEvent) -> None:
        event.version += 1
        event.clock = self._tick().copy()
        version = event.version

        def run() -> None:
            self.library.time += 0.001
            event.done_version, event.time = version, self.library.time

        self._push(run)

    def wait(self, event: FakeEvent) -> None:
        if self.library.skips(self.name):
            return
        self.library.clocks[self.name] |= event.clock
        version = event.version
        self._push(lambda: None, lambda: event.done_version >= version)


class FakeStreams:
    """StreamLibrary on the CPU.

    Args:
        choose: picks which stream runs next, and how much runs between two calls of the host.
        mode: "late": nothing runs before the host waits for it; "early": everything runs at once; "random".
        without_waits_of: the stream (or HOST) whose waits are left out, to see that it is noticed.
    """

    def __init__(self, choose: Chooser, mode: str = "random", without_waits_of: str | None = None) -> None:
        self.choose = choose
        self.mode = mode
        self.without_waits_of = without_waits_of
        self.streams: list[FakeStream] = []
        self.clocks: dict[str, Counter[str]] = {HOST: Counter()}
        self.races: list[str] = []
        self.time = 0.0
        self.fault: Exception | None = None
        """Set one and the device has failed for good."""
        self._accesses: dict[int, _Accesses] = {}
        self._kept: list[object] = []

    # The library

    def stream(self, name: str) -> FakeStream:
        self.streams.append(FakeStream(self, name))
        self.clocks[name] = Counter()
        return self.streams[-1]

    def event(self, timed: bool = False) -> FakeEvent:
        return FakeEvent(self, timed)

    def pinned(self, num_bytes: int) -> torch.Tensor:
        return torch.full((num_bytes,), GARBAGE, dtype=torch.uint8)

    def on_device(self, size: int) -> torch.Tensor:
        return torch.full((size,), -GARBAGE, dtype=torch.int32)

    def synchronize(self) -> None:
        self.run_until(lambda: not any(stream.queue for stream in self.streams))
        self.check_alive()
        for clock in list(self.clocks.values()):
            self.clocks[HOST] |= clock

    # Running

    def skips(self, agent: str) -> bool:
        return agent == self.without_waits_of

    def check_alive(self) -> None:
        if self.fault is not None:
            raise self.fault

    def run_some(self) -> None:
        if self.mode == "late" or self.fault is not None:
            return
        budget = 10**6 if self.mode == "early" else self.choose(4)
        while budget and self._run_one():
            budget -= 1

    def run_until(self, reached: Callable[[], bool]) -> None:
        while not reached() and self.fault is None:
            assert self._run_one(), "a deadlock: every stream waits"

    def _run_one(self) -> bool:
        ready = [stream for stream in self.streams if stream.queue and stream.queue[0][0]()]
        if not ready:
            return False
        ready[self.choose(len(ready))].queue.popleft()[1]()
        return True

    # Races

    def note(self, agent: str, clock: Counter[str], reads: Sequence[object], writes: Sequence[object]) -> None:
        """Compare an access that is being queued with those before it."""

        def is_before(other: tuple[str, int]) -> bool:
            return clock[other[0]] >= other[1]

        now = (agent, clock[agent])
        for buffer in reads:
            accesses = self._of(buffer)
            is_host_memory = isinstance(buffer, np.ndarray)
            if not is_host_memory and (accesses.writer is None or not is_before(accesses.writer)):
                self.races.append(f"{agent} reads a value that may not be there yet: {type(buffer).__name__}")
            accesses.readers.append(now)
        for buffer in writes:
            accesses = self._of(buffer)
            earlier = [*accesses.readers, *([accesses.writer] if accesses.writer else [])]
            if not all(is_before(other) for other in earlier):
                self.races.append(f"{agent} may overwrite what is still in use: {type(buffer).__name__}")
            accesses.writer, accesses.readers = now, []

    def _of(self, buffer: object) -> _Accesses:
        if id(buffer) not in self._accesses:
            self._kept.append(buffer)  # so that its id stays its own
            self._accesses[id(buffer)] = _Accesses()
        return self._accesses[id(buffer)]
