"""The engine's step in five verbs: plan, fill, submit, collect, update. Knows no tensors and no strings.

    depth 1 (synchronous):   plan N, submit N, collect N | plan N+1, submit N+1, collect N+1 | ...
    depth 2 (asynchronous):  plan N+1, submit N+1, collect N | plan N+2, submit N+2, collect N+1 | ...

With depth 2 the host plans step N + 1 while the device computes step N, and the only wait is for step N's tokens. When
they arrive, step N + 1 is running already: a row that turned out finished is dropped from step N + 2, and its token
of N + 1 is thrown away. A plan owns its blocks until it has been collected (see scheduler/seating.py).
"""

import logging
from collections import deque
from dataclasses import dataclass

from jitney.config import EngineConfig
from jitney.device.base import Device, Ticket
from jitney.engine.finish import Finisher
from jitney.engine.limits import EngineLimits, check_fits
from jitney.engine.records import StepRecords
from jitney.engine.step_buffer import StepBuffer
from jitney.engine.timeline import Timeline
from jitney.errors import DuplicateRequestError, EngineDeadError, StepFailedError
from jitney.scheduler.collecting import collect_step, requests_of
from jitney.scheduler.scheduler import Scheduler
from jitney.types import FinishReason, Request, StepOutput, StepPlan

logger = logging.getLogger(__name__)


@dataclass(slots=True)
class _InFlight:
    plan: StepPlan
    ticket: Ticket | Exception
    """The exception, if the device refused the step."""
    times: tuple[float, float, float, float]
    """plan_start, fill_start, submit_start, submit_end"""


class Engine:
    """Continuous batching on one device. Not thread-safe: one thread calls everything."""

    def __init__(self, config: EngineConfig, limits: EngineLimits, device: Device) -> None:
        self.config = config
        self.limits = limits
        self.device = device
        self.scheduler = Scheduler(config, limits.max_model_len, limits.num_kv_blocks, limits.num_host_kv_blocks)
        self.records = StepRecords()
        self.timeline: Timeline | None = None
        """Set one to record who sat where in every step."""
        self.death: Exception | None = None
        """Why the engine has stopped, if it has."""
        self._live: dict[str, Request] = {}
        self._finisher = Finisher(self.scheduler, self._live)
        size = 8 * config.max_num_seqs + config.max_num_batched_tokens
        self._buffers = [StepBuffer(size, device.host_buffer) for _ in range(config.depth)]
        self._in_flight: deque[_InFlight] = deque()

    # Requests come and go

    def add(self, *requests: Request) -> None:
        """Queue requests, all or none.

        Raises:
            DuplicateRequestError: an id is in use.
            RequestError: a request can never fit.
            EngineDeadError: the engine has stopped.
        """
        self.check_alive()
        ids = {request.request_id for request in requests}
        for request in requests:
            if request.request_id in self._live or len(ids) < len(requests):
                raise DuplicateRequestError(
                    f"request_id {request.request_id!r} is in use; choose another", "request_id"
                )
            check_fits(request, self.limits, self.config.block_size)
        for request in requests:
            self._live[request.request_id] = request
            request.metrics.arrival_time = request.metrics.arrival_time or self.device.now()
            self.scheduler.add(request)

    def add_or_refuse(self, *requests: Request) -> None:
        """Queue requests, all or none; if they cannot be, their listeners hear why. For callers on other threads."""
        try:
            self.add(*requests)
        except Exception as error:
            for request in requests:
                self._finisher.refuse(request, error)

    def abort(self, request_id: str) -> bool:
        """End a request at the caller's wish, wherever it is; False if there is none with this id."""
        request = self._live.get(request_id)
        if request is not None:
            self.finish(request, FinishReason.ABORT)
        return request is not None

    def abort_all(self) -> None:
        for request in list(self._live.values()):
            self.finish(request, FinishReason.ABORT)

    def finish(self, request: Request, reason: FinishReason, error: Exception | None = None) -> None:
        """End a request (see engine/finish.py); for listeners that find a stop string."""
        self._finisher.finish(request, reason, self.device.now(), error)

    @property
    def has_work(self) -> bool:
        return bool(self._in_flight) or self.scheduler.has_work

    @property
    def num_unfinished(self) -> int:
        return len(self._live)

    # The step

    def step(self) -> bool:
        """Plan and submit the next step, then collect one if as many are in flight as may be.

        Returns False if there was nothing to do until `wake_time`, or until something is added.
        """
        self.check_alive()
        try:
            planned = not self._was_refused and self._launch()
            if self._in_flight and (not planned or len(self._in_flight) >= self.config.depth):
                self._collect()
                return True
            return planned
        except Exception as error:
            self.die(error)
            raise EngineDeadError(f"the engine has stopped: {error!r}") from error

    def wake_time(self) -> float | None:
        """When to call `step` again after it returned False; None: when something is added."""
        return self.scheduler.wake_time()

    def step_or_wait(self) -> None:
        """Step; where there is nothing to do until `wake_time`, let that time pass."""
        if not self.step():
            wake = self.wake_time()
            if wake is None:
                raise AssertionError("requests wait, nothing runs, and nothing will wake the scheduler")
            self.device.wait_until(wake)

    def run_until_idle(self) -> None:
        """Step until every request has ended."""
        while self.has_work:
            self.step_or_wait()

    @property
    def _was_refused(self) -> bool:
        """The device refused the newest step: its table updates are lost, so its rows must end before more steps."""
        return bool(self._in_flight) and isinstance(self._in_flight[-1].ticket, Exception)

    def _launch(self) -> bool:
        now = self.device.now
        plan_start = now()
        plan = self.scheduler.plan(plan_start)
        if plan is None:
            return False
        fill_start = now()
        inputs = self._buffers[plan.step_id % len(self._buffers)].fill(plan)
        submit_start = now()
        ticket: Ticket | Exception
        try:
            ticket = self.device.submit(inputs)
        except EngineDeadError:
            raise
        except Exception as error:
            ticket = error  # handled in its turn, after the steps in flight before it
        self._in_flight.append(_InFlight(plan, ticket, (plan_start, fill_start, submit_start, now())))
        return True

    def _collect(self) -> None:
        now = self.device.now
        step = self._in_flight.popleft()
        collect_start = now()
        output: StepOutput | Exception
        try:
            if isinstance(step.ticket, Exception):
                raise step.ticket
            output = step.ticket.result()
        except EngineDeadError:
            raise
        except Exception as error:
            output = error
        collect_end = now()
        span = (collect_start, collect_start) if isinstance(step.ticket, Exception) else step.ticket.span()
        if self.timeline is not None:
            self.timeline.add_rows(step.plan, self.scheduler.slots.request, span)
        num_new_tokens = 0
        if isinstance(output, Exception):
            self._fail_step(step.plan, output)
        else:
            num_new_tokens = self._update(step.plan, output, collect_end)
        self._record(step, num_new_tokens, collect_start, collect_end, span)

    def _update(self, plan: StepPlan, output: StepOutput, now: float) -> int:
        news = collect_step(self.scheduler.seating, plan, output, now)
        for request, token in news.streamed:
            self._finisher.deliver(request, [token], now)
        for request, reason, error in news.ended:
            self._finisher.finish(request, reason, now, error)
        return news.num_new_tokens

    def _record(
        self,
        step: _InFlight,
        num_new_tokens: int,
        collect_start: float,
        collect_end: float,
        span: tuple[float, float],
    ) -> None:
        plan, scheduler = step.plan, self.scheduler
        num_sampled = len(plan.sample_rows)
        self.records.add(
            plan.step_id,
            *step.times,
            collect_start,
            collect_end,
            self.device.now(),
            *span,
            plan.num_rows,
            plan.num_decode_rows,
            len(plan.prompt_tokens),
            num_new_tokens,
            num_sampled - num_new_tokens,
            scheduler.num_running,
            scheduler.num_waiting,
            scheduler.seating.pool.num_held,
            scheduler.num_preemptions,
            len(plan.swap_out),
            len(plan.swap_in),
        )

    def _fail_step(self, plan: StepPlan, cause: Exception) -> None:
        """A forward pass raised: its requests end with the cause, requests that read its blocks start again."""
        scheduler, seating = self.scheduler, self.scheduler.seating
        for request in requests_of(seating, plan):
            failure = StepFailedError(f"request {request.request_id}: its forward pass failed: {cause!r}")
            failure.__cause__ = cause
            self.finish(request, FinishReason.ERROR, failure)
        scheduler.restart_readers(plan)
        scheduler.give_up_burning()
        seating.collected_step = plan.step_id
        seating.vacate_pending()

    # The end

    def check_alive(self) -> None:
        if self.death is not None:
            raise EngineDeadError(f"the engine has stopped: {self.death!r}") from self.death

    def die(self, cause: Exception) -> None:
        """Stop for good: every request ends with the cause, every later call raises it. Harmless when called twice."""
        if self.death is not None:
            return
        self.death = cause
        for request in list(self._live.values()):
            error = EngineDeadError(f"request {request.request_id}: the engine has stopped: {cause!r}")
            error.__cause__ = cause
            try:
                self.finish(request, FinishReason.ERROR, error)
            except Exception:
                logger.exception("request %s: the scheduler failed once more while it ended", request.request_id)

    def close(self) -> None:
        """End every request and give the device back. Harmless when called twice."""
        if self.death is None:
            self.abort_all()
            self.death = EngineDeadError("it was closed")
        self._in_flight.clear()
        self.device.close()
