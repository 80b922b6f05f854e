"""What every step left behind: times and counts in a ring buffer, at a microsecond a step.

From these come the live metrics, the timeline and the benchmark reports. Times are seconds on the device's clock.
"""

import numpy as np

_RECORD = np.dtype(
    [
        ("step_id", np.int64),
        ("plan_start", np.float64),
        ("fill_start", np.float64),
        ("submit_start", np.float64),
        ("submit_end", np.float64),
        ("collect_start", np.float64),
        ("collect_end", np.float64),
        ("update_end", np.float64),
        ("device_start", np.float64),
        ("device_end", np.float64),
        ("num_rows", np.int32),
        ("num_decode_rows", np.int32),
        ("num_prompt_tokens", np.int32),
        ("num_new_tokens", np.int32),
        ("num_wasted_rows", np.int32),
        ("num_running", np.int32),
        ("num_waiting", np.int32),
        ("num_kv_blocks_held", np.int32),
        ("num_preemptions", np.int32),
        ("num_swapped_out", np.int32),
        ("num_swapped_in", np.int32),
    ]
)


class StepRecords:
    """The last `capacity` steps.

    Fields: `plan_start` .. `submit_end` are host times of planning, filling the buffer and submitting; from
    `collect_start` to `collect_end` the host waits for the device, until `update_end` it takes in the tokens;
    `device_start` and `device_end` bound the step on the device. `num_new_tokens` counts tokens that reached a request,
    `num_wasted_rows` rows computed for nobody; `num_swapped_out` and `num_swapped_in` KV blocks copied to and from the
    host; the rest is the state after the step (`num_preemptions`: total so far).
    """

    def __init__(self, capacity: int = 16384) -> None:
        self._ring = np.zeros(capacity, dtype=_RECORD)
        self.num_steps = 0
        """Steps recorded since the start, those overwritten since included."""

    def add(self, *values: float) -> None:
        """One step; values in the order of the fields."""
        self._ring[self.num_steps % len(self._ring)] = values
        self.num_steps += 1

    def since(self, num_steps: int = 0) -> np.ndarray[tuple[int], np.dtype[np.void]]:
        """Records from the `num_steps`-th on, oldest first (a copy; those overwritten are missing)."""
        first = max(num_steps, self.num_steps - len(self._ring), 0)
        return self._ring[np.arange(first, self.num_steps) % len(self._ring)]


def device_idle_share(records: np.ndarray[tuple[int], np.dtype[np.void]]) -> float:
    """Share of the time from the first step's start to the last step's end in which the device had nothing to do."""
    if len(records) == 0:
        return 0.0
    total = float(records["device_end"][-1] - records["device_start"][0])
    busy = float((records["device_end"] - records["device_start"]).sum())
    return max(0.0, 1.0 - busy / total) if total > 0 else 0.0


def slot_occupancy(records: np.ndarray[tuple[int], np.dtype[np.void]], num_seats: int) -> float:
    """Share of the seats that computed for somebody, weighted by each step's time on the device."""
    duration = records["device_end"] - records["device_start"]
    total = float(duration.sum()) * num_seats
    useful = (records["num_rows"] - records["num_wasted_rows"]) * duration
    return float(useful.sum()) / total if total > 0 else 0.0


def host_seconds(records: np.ndarray[tuple[int], np.dtype[np.void]]) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    """[steps] host work of each step: plan, fill, submit and update, without the wait for the device."""
    before = records["submit_end"] - records["plan_start"]
    after = records["update_end"] - records["collect_end"]
    return np.asarray(before + after, dtype=np.float64)
