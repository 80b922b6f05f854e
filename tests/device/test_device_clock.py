from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jitney.device.device_clock import DeviceClock


@dataclass(frozen=True)
class Stamp:
    """An event at a time of a device clock that counts float32 milliseconds, as CUDA's does."""

    seconds: float

    def done(self) -> bool:
        return True

    def synchronize(self) -> None:
        pass

    def seconds_since(self, earlier: "Stamp") -> float:
        return float(np.float32((self.seconds - earlier.seconds) * 1e3)) / 1e3


def run_steps(drift: float, step_s: float, pause_s: float, latency_s: float, num_steps: int) -> list[float]:
    """Errors of the end times of steps, where the device's clock gains `drift` seconds a second."""

    def device(host: float) -> Stamp:
        return Stamp(host * (1 + drift) + 12345.0)

    clock = DeviceClock(device(100.0), 100.0 + latency_s)
    now, errors = 100.0, []
    for _ in range(num_steps):
        start, end = now + 1e-5, now + 1e-5 + step_s
        clock.span(device(start), device(end), now, end + latency_s, waited=True)
        errors.append(abs(clock.time_of(device(end)) - end))
        now = end + latency_s + pause_s
    return errors


@given(st.floats(-1e-4, 1e-4), st.sampled_from([0.0005, 0.01, 0.3]), st.floats(0, 5e-5))
@settings(max_examples=40, deadline=None)
def test_times_stay_true_however_the_clocks_drift(drift: float, step_s: float, latency_s: float) -> None:
    errors = run_steps(drift, step_s, 0.0, latency_s, num_steps=round(20 / step_s) if step_s > 0.001 else 3000)
    # a second's drift at most is not seen yet, and the host sees an end no earlier than it is told of it
    assert max(errors) <= 1.4 * abs(drift) + 2 * latency_s + 1e-5


@pytest.mark.parametrize("drift", [5e-5, -5e-5])
def test_the_first_step_after_an_idle_hour_is_bounded_by_its_own_submission_and_sight(drift: float) -> None:
    assert max(run_steps(drift, 0.01, 3600.0, 1e-5, 5)) < 0.001 + 0.01


def test_a_slow_host_does_not_pull_the_device_along() -> None:
    clock = DeviceClock(Stamp(0.0), 0.0)
    for i in range(1, 50):
        clock.span(Stamp(i * 0.1), Stamp(i * 0.1 + 0.05), 0.0, i * 0.1 + 0.09, waited=False)
    assert clock.time_of(Stamp(5.0)) == pytest.approx(5.0, abs=1e-6)


def test_a_step_cannot_have_begun_before_it_was_submitted_nor_ended_after_it_was_seen() -> None:
    clock = DeviceClock(Stamp(0.0), 0.0)
    clock.span(Stamp(0.1), Stamp(0.2), submitted=0.15, seen=0.5, waited=False)
    assert clock.time_of(Stamp(0.1)) == pytest.approx(0.15)
    clock.span(Stamp(0.3), Stamp(0.4), submitted=0.0, seen=0.42, waited=False)
    assert clock.time_of(Stamp(0.4)) == pytest.approx(0.42)
