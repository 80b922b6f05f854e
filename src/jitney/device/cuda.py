"""A GPU as a device: three streams joined by events, and a host that only ever waits for a finished result.

    H2D      | copy inputs N+1 |                     copy inputs N+2 |
    compute  | step N ................ | step N+1 ................ | step N+2
    D2H                                | copy tokens N |            | copy tokens N+1 |

A step's inputs travel in one copy of exactly the used length, from pinned host memory to one of `depth` staging
buffers. Steps of one compute stream run in order; that is all the order that KV cache, block tables and carried tokens
need. Nothing is ever put on the default stream. Knows neither torch.cuda (see device/streams.py) nor what a step does.
"""

import logging
from collections import deque
from dataclasses import dataclass
from time import perf_counter, sleep

import numpy as np
import torch

from jitney.device.base import AsyncStepRunner
from jitney.device.cuda_ticket import CudaTicket
from jitney.device.device_clock import DeviceClock
from jitney.device.streams import Event, StreamLibrary
from jitney.errors import EngineDeadError
from jitney.types import Int32, StepInputs

logger = logging.getLogger(__name__)


@dataclass(slots=True, eq=False)
class _Staging:
    """Inputs of one step on the device."""

    data: torch.Tensor
    free: Event | None = None
    """The step that read it last has been computed."""


class CudaDevice:
    """Runs `runner`'s steps on a GPU. Implements Device (device/base.py).

    Args:
        runner: what a step does. All it needs is on the device already.
        library: streams, events and pinned memory.
        depth: number of staging buffers. More steps may be in flight: their copies then wait, the host does not.
    """

    def __init__(self, runner: AsyncStepRunner, library: StreamLibrary, depth: int) -> None:
        self._runner: AsyncStepRunner | None = runner
        self._library = library
        self._h2d, self._compute, self._d2h = (library.stream(name) for name in ("h2d", "compute", "d2h"))
        self._staging = [_Staging(library.on_device(0)) for _ in range(depth)]
        self._num_submitted = 0
        self._most_inputs = 0
        self._in_flight: deque[CudaTicket] = deque()
        library.synchronize()  # weights and caches were written on other streams
        origin = library.event(timed=True)
        self._compute.record(origin)
        origin.synchronize()
        self._clock = DeviceClock(origin, perf_counter())

    def now(self) -> float:
        return perf_counter()

    def wait_until(self, time: float) -> None:
        sleep(max(0.0, time - perf_counter()))

    def host_buffer(self, size: int) -> Int32:
        self._most_inputs = max(self._most_inputs, size)
        buffer: Int32 = self._library.pinned(4 * size).numpy().view(np.int32)
        return buffer

    def submit(self, inputs: StepInputs) -> CudaTicket:
        """Queue a step. Raises EngineDeadError after `close`, and when the GPU takes no more work."""
        if self._runner is None:
            raise EngineDeadError("the device is closed; make a new engine to run more steps")
        assert not any(np.may_share_memory(inputs.data, ticket.inputs.data) for ticket in self._in_flight), (
            "a step's inputs lie in a buffer whose last step has not been collected"
        )
        try:
            ticket = self._queue(self._runner, inputs)
        except Exception as error:
            raise EngineDeadError(f"the GPU takes no more steps: {error}") from error
        self._in_flight.append(ticket)
        return ticket

    def _queue(self, runner: AsyncStepRunner, inputs: StepInputs) -> CudaTicket:
        ticket = CudaTicket(self._library, runner, inputs, self._clock, self._forget)
        staging = self._fill_staging(inputs)
        self._compute.record(ticket.started)
        self._compute.launch(
            lambda: ticket.compute(staging.data[: len(inputs.data)]), reads=(staging,), writes=(runner, ticket)
        )
        self._compute.record(ticket.computed)
        staging.free = ticket.computed
        self._d2h.wait(ticket.computed)
        self._d2h.launch(ticket.copy_to_host, reads=(ticket,), writes=())
        self._d2h.record(ticket.copied)
        return ticket

    def _fill_staging(self, inputs: StepInputs) -> _Staging:
        """Copy the inputs to the device, in order after the step that used the buffer last and before compute."""
        index = self._num_submitted % len(self._staging)
        self._num_submitted += 1
        staging = self._staging[index]
        size = len(inputs.data)
        if staging.free is not None:
            self._h2d.wait(staging.free)
        if size > len(staging.data):
            staging = self._staging[index] = _Staging(self._library.on_device(max(size, self._most_inputs)))
        source = torch.from_numpy(inputs.data)
        self._h2d.launch(
            lambda: _copy(staging.data[:size], source),
            reads=(inputs.data,),
            writes=(staging,),
        )
        filled = self._library.event()
        self._h2d.record(filled)
        self._compute.wait(filled)
        return staging

    def _forget(self, ticket: CudaTicket) -> None:
        if ticket in self._in_flight:  # not if the device has been closed meanwhile
            self._in_flight.remove(ticket)

    def close(self) -> None:
        if self._runner is None:
            return
        self._runner = None
        try:
            self._library.synchronize()
        except Exception as error:  # it has died before; whoever waited for a step has been told
            logger.warning("the GPU did not finish its last steps: %s", error)
        self._in_flight.clear()
        self._staging.clear()


def _copy(target: torch.Tensor, source: torch.Tensor) -> None:
    target.copy_(source, non_blocking=True)
