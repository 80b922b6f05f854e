"""A device with a cost model and a clock of its own: the engine's real loop, thousands of steps a second.

Test-bench of the scheduler and base of the planner. A step's work is done as late as the seam allows (when its result
is asked for), so a buffer that is rewritten too early gives wrong tokens and not just wrong times.
"""

import time
from collections import deque
from collections.abc import Callable
from typing import Protocol

import numpy as np

from jitney.device.base import StepRunner
from jitney.errors import EngineDeadError
from jitney.types import Int32, StepInputs, StepOutput

CostModel = Callable[[StepInputs], float]
"""Seconds that a step takes on the device."""


class Clock(Protocol):
    """Where `now` comes from."""

    def now(self) -> float:
        """Seconds."""

    def advance_to(self, time: float) -> None:
        """Let time pass; harmless if it has passed already."""

    def spend_host(self) -> None:
        """The host has planned and submitted one step."""


class VirtualClock:
    """Deterministic: the host takes `host_cost_s` seconds a step, everything else no time at all."""

    def __init__(self, host_cost_s: float = 0.0) -> None:
        self._now = 0.0
        self._host_cost_s = host_cost_s

    def now(self) -> float:
        return self._now

    def advance_to(self, time: float) -> None:
        self._now = max(self._now, time)

    def spend_host(self) -> None:
        self._now += self._host_cost_s


class MeasuredHostClock:
    """Real time for what the host does, virtual time for what the device does: waits are skipped, work is not."""

    def __init__(self) -> None:
        self._origin = time.perf_counter()
        self._skipped = 0.0

    def now(self) -> float:
        return time.perf_counter() - self._origin + self._skipped

    def advance_to(self, time: float) -> None:
        self._skipped += max(0.0, time - self.now())

    def spend_host(self) -> None:
        pass


class SimulatedTicket:
    """A step that has a start and an end, and is computed when asked for."""

    def __init__(self, device: "SimulatedDevice", inputs: StepInputs, start: float, end: float) -> None:
        self._device = device
        self._inputs = inputs
        self._span = (start, end)
        self._outcome: StepOutput | Exception | None = None

    def done(self) -> bool:
        return self._device.now() >= self._span[1]

    def result(self) -> StepOutput:
        self._device.run_up_to(self)
        self._device.wait_until(self._span[1])
        if isinstance(self._outcome, Exception):
            raise self._outcome
        assert self._outcome is not None
        return self._outcome

    def span(self) -> tuple[float, float]:
        return self._span

    def compute(self, runner: StepRunner) -> None:
        try:
            self._outcome = runner.run(self._inputs)
        except Exception as error:
            self._outcome = error


class SimulatedDevice:
    """Runs steps of `runner` one after the other on a virtual time line.

    Args:
        runner: what computes tokens, for example runner/toy.py.
        cost: seconds a step takes on the device.
        clock: default: a VirtualClock with a free host.
    """

    def __init__(self, runner: StepRunner, cost: CostModel, clock: Clock | None = None) -> None:
        self._runner = runner
        self._cost = cost
        self._clock = clock or VirtualClock()
        self._busy_until = 0.0
        self._submitted: deque[SimulatedTicket] = deque()
        self._is_closed = False

    def now(self) -> float:
        return self._clock.now()

    def wait_until(self, time: float) -> None:
        self._clock.advance_to(time)

    def host_buffer(self, size: int) -> Int32:
        return np.empty(size, dtype=np.int32)

    def submit(self, inputs: StepInputs) -> SimulatedTicket:
        if self._is_closed:
            raise EngineDeadError("the device is closed")
        self._clock.spend_host()
        start = max(self._clock.now(), self._busy_until)
        self._busy_until = start + self._cost(inputs)
        ticket = SimulatedTicket(self, inputs, start, self._busy_until)
        self._submitted.append(ticket)
        return ticket

    def run_up_to(self, ticket: SimulatedTicket) -> None:
        """Compute the steps submitted up to this one, in order."""
        while ticket in self._submitted:
            self._submitted.popleft().compute(self._runner)

    def close(self) -> None:
        self._is_closed = True
        self._submitted.clear()


def linear_cost(step_s: float, per_token_s: float = 0.0, per_context_token_s: float = 0.0) -> CostModel:
    """A step takes `step_s` (reading the weights) + a price per token computed and per context token read."""

    def cost(inputs: StepInputs) -> float:
        rows = inputs.num_rows
        context = int(inputs.data[rows : 3 * rows].sum())  # row_starts and row_lens
        return step_s + per_token_s * inputs.num_tokens + per_context_token_s * context

    return cost
