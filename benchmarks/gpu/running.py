"""Runs the parts one after the other within a budget of time, so that none can take the others with it.

A worker process runs the parts. A part that raises is recorded and the worker leaves, since an error on a GPU can spoil
all later work of the process; a part that hangs or kills its process is recorded by the parent. Either way the parent
starts another worker for the parts that are left. Knows nothing of what a part measures.
"""

import gc
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from types import FrameType
from typing import Any

from gpu.result import RUNNING, WAITING, Result

GRACE_SHARE = 0.1
"""How long past its end a part may run before its process is killed, as a share of the whole budget."""
POLL_S = 0.2


class Part:
    """One part's view of the run: how much time it has, and where its rows go."""

    def __init__(self, result: Result, name: str, budget_s: float) -> None:
        self.name = name
        self.result = result
        self.ends_at = time.monotonic() + budget_s
        self.failure: str | None = None
        """Set it if what was measured is wrong, and go on."""

    @property
    def left_s(self) -> float:
        """Seconds left; at 0 or less, stop and keep what there is."""
        return self.ends_at - time.monotonic()

    def add(self, **row: Any) -> None:
        """A row of the part's table, kept from now on."""
        self._append("rows", row)

    def total(self, **row: Any) -> None:
        """A row of the table that is printed last."""
        self._append("totals", row)

    def note(self, text: str) -> None:
        print(f"{self.name}: {text}", flush=True)
        self._append("notes", text)

    def _append(self, key: str, value: Any) -> None:
        self.result.part(self.name)[key].append(value)
        self.result.save()


def work(result: Result, parts: Mapping[str, Callable[[Part], None]], weights: Mapping[str, float]) -> int:
    """The worker: run the waiting parts in order; returns 1 after one that raised, which may have spoilt the process.

    A part's time is its share, by weight, of what is left: what one leaves over goes to those behind it.
    """
    for name in result.with_status(WAITING):
        shares = {other: weights[other] for other in result.with_status(WAITING)}
        left_s = result.document["ends_at"] - time.monotonic()
        budget_s = max(0.0, left_s) * shares[name] / sum(shares.values())
        result.start(name, budget_s)
        part = Part(result, name, budget_s)
        try:
            parts[name](part)
        except Exception:
            result.end(name, traceback.format_exc())
            return 1
        result.end(name, part.failure)
        gc.collect()
    return 0


def supervise(result: Result, command: Sequence[str], budget_s: float) -> None:
    """The parent: start workers (`command`) until no part waits; kill one whose part is long over its time."""
    grace_s = GRACE_SHARE * budget_s
    signal.signal(signal.SIGTERM, _leave)
    while result.with_status(WAITING):
        if time.monotonic() > result.document["ends_at"]:
            for name in result.with_status(WAITING):
                result.end(name, "no time was left")
            return
        waiting = result.with_status(WAITING)
        reason = _watch(result, command, grace_s)
        result.reload()
        for name in result.with_status(RUNNING):
            result.end(name, reason)
        if result.with_status(WAITING) == waiting:  # it never got as far as a part
            result.end(waiting[0], f"the process did not begin the part: {reason}")


def _watch(result: Result, command: Sequence[str], grace_s: float) -> str:
    """Run one worker to its end; returns how it ended."""
    process = subprocess.Popen(command)
    try:
        while process.poll() is None:
            time.sleep(POLL_S)
            result.reload()
            if time.monotonic() > _latest_end(result) + grace_s:
                return "its time was long over, so its process was killed"
        return f"its process ended with code {process.returncode}"
    finally:
        if process.poll() is None:
            process.kill()
        process.wait()


def _latest_end(result: Result) -> float:
    """When the running part, or while none runs the whole, should be over."""
    ends = [result.part(name)["started_at"] + result.part(name)["budget_s"] for name in result.with_status(RUNNING)]
    return float(min([*ends, result.document["ends_at"]]))


def _leave(number: int, frame: FrameType | None) -> None:
    sys.exit(128 + number)
