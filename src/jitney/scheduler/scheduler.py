"""One scheduling decision per forward pass: who computes which tokens. Pure: no torch, no clock, no I/O.

`plan` decides step N + 1 while step N may still run; collecting.py takes in the tokens of a collected step. Decode rows
come first, then running prefills, then admissions, within `max_num_batched_tokens`. When KV blocks run out, the newest
request makes room; the oldest never does, so the system always makes progress.
"""

from typing import NamedTuple

import numpy as np

from jitney.config import EngineConfig
from jitney.scheduler.batching import make_batching
from jitney.scheduler.seating import Seating
from jitney.scheduler.slots import Phase, Slots
from jitney.scheduler.waiting_queue import WaitingQueue
from jitney.types import Int64, Request, RequestStatus, SlotAdmission, StepPlan

_NO_TOKENS = np.empty(0, dtype=np.int32)
_ALIVE = (Phase.PREFILL, Phase.DECODE, Phase.LAST)


class _Chunk(NamedTuple):
    """Tokens [start, start + length) of a slot's prompt, to be computed in the step being planned."""

    slot: int
    start: int
    length: int
    samples: bool


class Scheduler:
    """Plans steps for one device.

    Args:
        config: budget, seats, policies.
        max_model_len: longest prompt + output, in tokens.
        num_kv_blocks: usable KV blocks (scratch not counted).
        num_host_kv_blocks: blocks of host memory for the KV of preempted requests.
    """

    def __init__(
        self, config: EngineConfig, max_model_len: int, num_kv_blocks: int, num_host_kv_blocks: int = 0
    ) -> None:
        self.config = config
        self.queue = WaitingQueue(by_priority=config.scheduling_policy == "priority")
        self.slots = Slots(config.num_slots, max_model_len, config.block_size)
        self.seating = Seating(
            self.slots, self.queue, config.block_size, config.enable_prefix_caching, num_kv_blocks, num_host_kv_blocks
        )
        self.num_preemptions = 0
        self._batching = make_batching(config)
        self._prefilling: list[int] = []
        self._arrivals = 0
        self._step_id = 0
        self._prompt_logprob_budget = 0
        self._admissions: list[SlotAdmission] = []

    # Requests come and go

    def add(self, request: Request) -> None:
        request.arrival_index = self._arrivals
        self._arrivals += 1
        self.queue.push(request)

    def remove(self, request: Request) -> None:
        """The request has just ended (status FINISHED): give up its place in the queue or its seat."""
        slot = request.slot
        if slot is None:
            self.queue.forget(request)
            self.seating.swap_space.drop(request.arrival_index)
            return
        self.slots.save_outputs(slot)
        if slot in self._prefilling:
            self._prefilling.remove(slot)
        if self._batching.holds_seats and self.slots.last_step[slot] >= 0:
            self.seating.burn(slot)
        else:
            self.seating.leave(slot, Phase.LEAVING)
        self._end_batch_if_all_burn()

    @property
    def num_waiting(self) -> int:
        return len(self.queue)

    @property
    def num_running(self) -> int:
        """Occupied seats."""
        return self.slots.num_seated

    @property
    def has_work(self) -> bool:
        return bool(len(self.queue) or self.slots.num_occupied)

    def wake_time(self) -> float | None:
        """When to plan again though nothing is in flight and nothing new arrives."""
        head = self.queue.peek()
        return self._batching.wake_time(head.metrics.arrival_time) if head else None

    # Planning

    def plan(self, now: float) -> StepPlan | None:
        """Decide the next step; None if there is nothing to compute (all done, or all waiting for steps in flight)."""
        # A batch that holds its seats is closed until its last step has been collected. Counted before rows that get
        # their last token in this step give up their seat: it is free for the next step.
        num_running = self.slots.num_occupied if self._batching.holds_seats else self.slots.num_seated
        decode_slots = self._plan_decode()
        decode_starts = self._advance_decode(decode_slots)
        budget = self.config.max_num_batched_tokens - len(decode_slots)
        self._prompt_logprob_budget = self.config.prompt_logprob_tokens
        chunks: list[_Chunk] = []
        budget = self._plan_prefills(budget, chunks)
        self._admit(budget, chunks, num_running, now)
        if not len(decode_slots) and not chunks:
            return None
        return self._make_plan(decode_slots, decode_starts, chunks)

    def _plan_decode(self) -> Int64:
        """Slots that decode in this step; every one has a block for its token."""
        slots = self.slots
        rows = slots.where(Phase.DECODE)
        if self._batching.holds_seats and (len(rows) or self._prefilling):
            rows = slots.where(Phase.DECODE, Phase.BURNING)
        full = slots.num_computed[rows] >= slots.capacity[rows]
        if not full.any():
            return rows
        growing = rows[full & (slots.phase[rows] == Phase.DECODE)]
        if len(growing) <= self.seating.pool.num_free:
            if len(growing):
                self.seating.grow_by_one_block(growing)
            return rows
        for slot in growing[self._oldest_first(growing)].tolist():
            if slots.phase[slot] == Phase.DECODE:  # may have been preempted meanwhile
                self._make_room(slot, int(slots.num_computed[slot]) + 1)
        has_room = slots.num_computed[rows] < slots.capacity[rows]
        able: Int64 = rows[(has_room & (slots.phase[rows] == Phase.DECODE)) | (slots.phase[rows] == Phase.BURNING)]
        return able

    def _advance_decode(self, rows: Int64) -> Int64:
        """Account for one more token of each row; returns the positions [D]."""
        slots = self.slots
        starts = slots.num_computed[rows]
        slots.num_computed[rows] = starts + 1
        left = slots.tokens_left[rows] - 1
        slots.tokens_left[rows] = left
        slots.last_step[rows] = self._step_id
        if not left.all():
            ended = rows[left == 0]
            slots.phase[ended[slots.phase[ended] == Phase.DECODE]] = Phase.LAST
        if self._batching.holds_seats:
            slots.num_computed[rows[slots.phase[rows] == Phase.BURNING]] -= 1  # stays where it is
        return starts

    def _plan_prefills(self, budget: int, chunks: list[_Chunk]) -> int:
        """Go on with prompts that are partly computed, first seated first; returns the budget left."""
        for slot in list(self._prefilling):
            if budget <= 0:
                break
            if self.slots.phase[slot] == Phase.PREFILL:  # may have been preempted for an older one
                budget -= self._plan_chunk(slot, budget, chunks)
        return budget

    def _plan_chunk(self, slot: int, budget: int, chunks: list[_Chunk]) -> int:
        """Schedule the next tokens of a prompt; returns how many."""
        slots = self.slots
        start = int(slots.num_computed[slot])
        missing = int(slots.num_tokens[slot]) - start
        length = min(missing, budget, self.config.prefill_chunk_size or missing)
        wants_logprobs = self._wants_prompt_logprobs(slot, start)
        if wants_logprobs:  # logits of every position take memory
            length = min(length, self._prompt_logprob_budget)
        if length == 0 or (length < missing and not self.config.enable_chunked_prefill):
            return 0
        if not self._make_room(slot, start + length):
            return 0
        if wants_logprobs:
            self._prompt_logprob_budget -= length
        slots.num_computed[slot] = start + length
        slots.last_step[slot] = self._step_id
        if length == missing:
            self._prefilling.remove(slot)
            left = slots.tokens_left[slot] = slots.tokens_left[slot] - 1
            slots.phase[slot] = Phase.DECODE if left else Phase.LAST
        chunks.append(_Chunk(slot, start, length, samples=length == missing))
        # Offered before it has run: whoever is planned from now on runs after it, or beside it in the same forward
        # pass, where every layer writes all new KV before it reads any.
        size = self.seating.block_size
        self.seating.offer_blocks(slot, start // size, (start + length) // size)
        return length

    def _admit(self, budget: int, chunks: list[_Chunk], num_running: int, now: float) -> None:
        """Seat waiting requests while there are seats, blocks and (unless the batch closes now) budget."""
        head = self.queue.peek()
        if head is None:
            return
        arrival = head.metrics.arrival_time
        seats = self._batching.free_seats(num_running, len(self.queue), arrival, now)
        seats = min(seats, self.slots.num_slots - self.slots.num_occupied)
        while seats > 0 and (budget > 0 or self._batching.holds_seats):
            request = self.queue.peek()
            if request is None or not self._seat(request, now):
                return
            seats -= 1
            assert request.slot is not None
            if budget > 0:
                budget -= self._plan_chunk(request.slot, budget, chunks)

    def _seat(self, request: Request, now: float) -> bool:
        """Take the head of the queue to a seat if its whole prompt fits beside the running ones."""
        seating = self.seating
        num_known = request.num_prompt_tokens + len(request.output_token_ids)
        if self._batching.holds_seats:  # as static batching does: memory for the longest possible output
            wanted, reserve = request.num_prompt_tokens + request.max_tokens - 1, 0
        else:  # leave running requests room to grow, so that an admission is not undone at once
            wanted, reserve = num_known, min(self.num_running, seating.pool.num_blocks // 10)
        prefix = seating.find_room(request, wanted, reserve)
        if prefix is None:
            return False
        self.queue.pop()
        slot = seating.seat(request, prefix)
        if self._batching.holds_seats:
            seating.grow(slot, wanted)
        self._prefilling.append(slot)
        request.status = RequestStatus.RUNNING
        if request.metrics.first_scheduled_time is None:
            request.metrics.first_scheduled_time = now
            request.metrics.num_cached_tokens = len(prefix) * seating.block_size
        outputs = np.array(request.output_token_ids, dtype=np.int32)
        self._admissions.append(
            SlotAdmission(slot, request.params, request.seed, request.stop_token_ids, request.prompt_token_ids, outputs)
        )
        return True

    def _make_plan(self, rows: Int64, starts: Int64, chunks: list[_Chunk]) -> StepPlan:
        num_decode = len(rows)
        table = np.empty((4, num_decode + len(chunks)), dtype=np.int32)  # slot, start, length, samples
        table[0, :num_decode], table[1, :num_decode], table[2:, :num_decode] = rows, starts, 1
        prompt = _NO_TOKENS
        if chunks:
            table[:, num_decode:] = np.array(chunks).T
            tokens = self.slots.tokens
            prompt = np.concatenate([tokens[slot, start : start + length] for slot, start, length, _ in chunks])
        swap_out, swap_in = self.seating.swap_space.take_copies()
        plan = StepPlan(
            step_id=self._step_id,
            num_decode_rows=num_decode,
            row_slots=table[0],
            row_starts=table[1],
            row_lens=table[2],
            prompt_tokens=prompt,
            sample_rows=np.flatnonzero(table[3]).astype(np.int32),
            table_updates=self.seating.take_table_updates(),
            admissions=tuple(self._admissions),
            prompt_logprob_rows=self._prompt_logprob_rows(num_decode, chunks),
            swap_out=swap_out,
            swap_in=swap_in,
        )
        self._admissions = []
        self._step_id += 1
        return plan

    def _prompt_logprob_rows(self, num_decode: int, chunks: list[_Chunk]) -> tuple[tuple[int, int], ...]:
        """Prefill rows with prompt positions whose logprobs are wanted and not there yet."""
        rows = []
        for index, (slot, start, length, _) in enumerate(chunks):
            request = self.slots.request[slot]
            assert request is not None
            count, have = request.params.prompt_logprobs, len(request.prompt_logprobs)
            if count is not None and self._wants_prompt_logprobs(slot, start) and start + length > have:
                rows.append((num_decode + index, count))
        return tuple(rows)

    def _wants_prompt_logprobs(self, slot: int, start: int) -> bool:
        request = self.slots.request[slot]
        assert request is not None
        return request.params.prompt_logprobs is not None and start < request.num_prompt_tokens - 1

    # Pressure on the KV cache

    def _make_room(self, slot: int, num_tokens: int) -> bool:
        """Grow the slot to `num_tokens`, at the cost of newer requests if need be; False: not in this step."""
        while not self.seating.grow(slot, num_tokens):
            if self.seating.has_pending:
                return False  # blocks come back when the steps in flight are collected
            victim = self._newest()
            self._preempt(victim)
            if victim == slot:
                return False
        return True

    def _preempt(self, slot: int, phase: int = Phase.PREEMPTED) -> None:
        request = self.slots.request[slot]
        assert request is not None
        self.num_preemptions += 1
        request.metrics.num_preemptions += 1
        request.status = RequestStatus.WAITING
        if slot in self._prefilling:
            self._prefilling.remove(slot)
        self.seating.leave(slot, phase)
        self._end_batch_if_all_burn()

    def restart_readers(self, plan: StepPlan) -> None:
        """The step failed: its blocks hold garbage, and requests that read them start again."""
        for slot in self.seating.forget_step(plan):
            if self.slots.phase[slot] in (*_ALIVE, Phase.PREEMPTED):
                self._preempt(slot, Phase.LEAVING)

    def _oldest_first(self, rows: Int64) -> Int64:
        keys = (self.slots.arrival_index[rows], self._priorities(rows))
        return np.lexsort(keys)

    def _newest(self) -> int:
        """The running request that arrived last (of the lowest rank, with priorities)."""
        rows = self.slots.where(Phase.PREFILL, Phase.DECODE)
        return int(rows[self._oldest_first(rows)[-1]])

    def _priorities(self, rows: Int64) -> Int64:
        by_priority = self.config.scheduling_policy == "priority"
        return self.slots.priority[rows] if by_priority else np.zeros(len(rows), dtype=np.int64)

    def give_up_burning(self) -> None:
        """Empty the burning seats: their batch has ended, or a failed step took the news that they write to scratch."""
        for slot in self.slots.where(Phase.BURNING).tolist():
            self.seating.leave(slot, Phase.LEAVING)

    def _end_batch_if_all_burn(self) -> None:
        if self._batching.holds_seats and not len(self.slots.where(*_ALIVE)):
            self.give_up_burning()
