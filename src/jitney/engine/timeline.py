"""Who sat where, and when host and device worked: Chrome trace JSON for ui.perfetto.dev or chrome://tracing.

One lane for the host, one for the device, one per seat. A gap in the device lane is an idle device; in a seat's lane
it is an empty seat, and "wasted" a seat computed for nobody.
"""

import itertools
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from jitney.engine.records import StepRecords
from jitney.types import Request, StepPlan

_HOST, _DEVICE, _SEATS = 1, 2, 3


class Timeline:
    """Collects one event per row and step. Times in seconds on the device's clock."""

    def __init__(self, records: StepRecords) -> None:
        self._records = records
        self._first_step = records.num_steps
        self._rows: list[tuple[int, str, str, float, float]] = []
        self._seats: dict[int, tuple[str, int]] = {}
        """slot -> (request in it, its seat): requests that have left their seat keep their slot for a step or two."""

    def add_rows(self, plan: StepPlan, occupants: Sequence[Request | None], span: tuple[float, float]) -> None:
        """The rows of a collected step, before its tokens are taken in."""
        seats = self._seat_of(plan.row_slots.tolist(), occupants)
        for row, slot in enumerate(plan.row_slots.tolist()):
            request = occupants[slot]
            if request is None or request.is_finished:
                kind = "wasted"
            else:
                kind = "decode" if row < plan.num_decode_rows else "prefill"
            self._rows.append((seats[slot], request.request_id if request else "-", kind, *span))

    def _seat_of(self, slots: list[int], occupants: Sequence[Request | None]) -> dict[int, int]:
        """The seat of each slot of a step: a request stays where it was, a new one takes the first free seat."""
        ids = {slot: request.request_id if (request := occupants[slot]) else "-" for slot in slots}
        kept = {slot: held for slot, held in self._seats.items() if ids.get(slot) == held[0]}
        free = (seat for seat in itertools.count() if seat not in {held[1] for held in kept.values()})
        self._seats = {slot: kept.get(slot) or (name, next(free)) for slot, name in ids.items()}
        return {slot: held[1] for slot, held in self._seats.items()}

    def events(self) -> list[dict[str, Any]]:
        """Chrome trace events; timestamps in microseconds from the first plan."""
        records = self._records.since(self._first_step)
        origin = float(records["plan_start"][0]) if len(records) else 0.0
        events = [_lane_name(_HOST, 0, "host", "loop"), _lane_name(_DEVICE, 0, "device", "steps")]
        for record in records:
            events += _step_events(record, origin)
        rows = [row for row in self._rows if row[3] >= origin]  # steps that the ring still has
        for seat in sorted({row[0] for row in rows}):
            events.append(_lane_name(_SEATS, seat, "seats", f"seat {seat}"))
        for seat, request_id, kind, start, end in rows:
            name = request_id if kind == "decode" else f"{request_id} ({kind})"
            events.append(_span(_SEATS, seat, name, start, end, origin, {"kind": kind}))
        return events

    def write(self, path: str | Path) -> None:
        """Write the trace; the folder must exist."""
        document = {"traceEvents": self.events(), "displayTimeUnit": "ms"}
        Path(path).write_text(json.dumps(document, ensure_ascii=False), encoding="utf-8")


def _step_events(record: Any, origin: float) -> list[dict[str, Any]]:
    step = int(record["step_id"])
    bounds = (
        ("plan", "plan_start", "fill_start"),
        ("fill", "fill_start", "submit_start"),
        ("submit", "submit_start", "submit_end"),
        ("wait", "collect_start", "collect_end"),
        ("update", "collect_end", "update_end"),
    )
    events = [
        _span(_HOST, 0, name, float(record[start]), float(record[end]), origin, {"step": step})
        for name, start, end in bounds
    ]
    counts = (
        "num_decode_rows",
        "num_prompt_tokens",
        "num_new_tokens",
        "num_running",
        "num_waiting",
        "num_kv_blocks_held",
    )
    args = {"step": step} | {name: int(record[name]) for name in counts}
    start, end = float(record["device_start"]), float(record["device_end"])
    return [*events, _span(_DEVICE, 0, f"step {step}", start, end, origin, args)]


def _span(
    pid: int, tid: int, name: str, start: float, end: float, origin: float, args: dict[str, Any]
) -> dict[str, Any]:
    timing = {"ts": round((start - origin) * 1e6, 3), "dur": round((end - start) * 1e6, 3)}
    return {"ph": "X", "pid": pid, "tid": tid, "name": name, **timing, "args": args}


def _lane_name(pid: int, tid: int, process: str, thread: str) -> dict[str, Any]:
    return {"ph": "M", "pid": pid, "tid": tid, "name": "thread_name", "args": {"name": f"{process}: {thread}"}}
