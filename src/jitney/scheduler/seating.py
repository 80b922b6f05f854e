"""Seats and their KV blocks: taking, growing, leaving. Decides nothing; the scheduler says who.

The rule that makes overlap safe: a slot and its blocks are reused only after the last step that can write to them has
been collected. Until then the slot is PREEMPTED or LEAVING, and `pending` knows that blocks are about to come back.
"""

from dataclasses import dataclass

import numpy as np

from jitney.kv.block_pool import SCRATCH_BLOCK, BlockPool
from jitney.kv.prefix_cache import PrefixCache, extend_chain
from jitney.kv.swap_space import SwapSpace
from jitney.scheduler.slots import Phase, Slots
from jitney.scheduler.waiting_queue import WaitingQueue
from jitney.types import Int32, Int64, Request, RequestStatus, StepPlan


@dataclass(frozen=True, slots=True)
class _Refusal:
    """A request had too few blocks, at this count of releases and with this block of its prefix missing."""

    request: Request
    num_releases: int
    missing: list[bytes]

    def still_holds(self, request: Request, pool: BlockPool, prefix_cache: PrefixCache | None) -> bool:
        if request is not self.request or pool.num_releases != self.num_releases:
            return False
        return prefix_cache is None or not any(prefix_cache.offers(digest) for digest in self.missing)


class Seating:
    """Slots, block pool, prefix cache and swap space of one engine.

    `table_updates` collects (slot, index, block) for the step being planned; the scheduler takes them.
    """

    def __init__(
        self,
        slots: Slots,
        queue: WaitingQueue,
        block_size: int,
        prefix_caching: bool,
        num_blocks: int,
        num_host_blocks: int,
    ) -> None:
        self.slots = slots
        self.block_size = block_size
        self.collected_step = -1
        self.table_updates: list[Int32] = []
        self.pool = BlockPool(num_blocks, on_evict=self.forget)
        self.prefix_cache = PrefixCache(self.pool, block_size) if prefix_caching else None
        self.swap_space = SwapSpace(num_host_blocks)
        self._queue = queue
        self._pending: list[int] = []
        self._refusal: _Refusal | None = None

    @property
    def has_pending(self) -> bool:
        """Blocks will come back when the steps in flight have been collected."""
        return bool(self._pending) or bool((self.slots.phase == Phase.LAST).any())

    def blocks_for(self, num_tokens: int) -> int:
        return -(-num_tokens // self.block_size)

    # Entering

    def find_prefix(self, request: Request) -> list[int]:
        """Cached blocks for the request's tokens; at least one token is always left to compute."""
        if self.prefix_cache is None:
            return []
        tokens = known_tokens(request)
        extend_chain(request.block_digests, request.cache_salt, tokens, self.block_size)
        if request.params.prompt_logprobs is not None:
            return []  # every prompt position must be computed to have logits
        return self.prefix_cache.match(request.block_digests, tokens, (len(tokens) - 1) // self.block_size)

    def find_room(self, request: Request, num_tokens: int, reserve: int) -> list[int] | None:
        """The cached prefix to seat the request with; None: its tokens do not fit beside `reserve` free blocks.

        A refusal holds until blocks are released or more of the prefix is on offer, so that a long prompt at the head
        of the queue is not matched again in every step.
        """
        if self._refusal is not None and self._refusal.still_holds(request, self.pool, self.prefix_cache):
            return None
        prefix = self.find_prefix(request)
        # New blocks, and cached ones that stop being free.
        needed = self.blocks_for(num_tokens) - len(prefix) + self.pool.count_cached(prefix)
        if needed + reserve <= self.pool.num_free:
            return prefix
        missing = request.block_digests[len(prefix) + 1 : len(prefix) + 2]
        self._refusal = _Refusal(request, self.pool.num_releases, missing)
        return None

    def seat(self, request: Request, prefix: list[int]) -> int:
        """Give the request a slot that starts with the cached blocks of `prefix`, then with swapped ones."""
        slot = self.slots.take(request)
        for block in prefix:
            self.pool.share(block)
        if prefix:
            self._append_blocks(slot, prefix)
            self.slots.num_computed[slot] = len(prefix) * self.block_size
        self._swap_in(slot, request, len(prefix))
        return slot

    def _swap_in(self, slot: int, request: Request, num_cached: int) -> None:
        """Go on where the request's last seat was left, if the swap space kept more than the prefix cache has."""
        num_tokens = self.swap_space.num_tokens(request.arrival_index)
        if num_tokens <= num_cached * self.block_size:
            self.swap_space.drop(request.arrival_index)
            return
        blocks = self.pool.allocate(self.blocks_for(num_tokens) - num_cached)
        self._append_blocks(slot, blocks)
        self.slots.num_computed[slot] = num_tokens
        self.swap_space.swap_in(request.arrival_index, blocks)
        self.offer_blocks(slot, num_cached, num_tokens // self.block_size)

    # Growing

    def grow(self, slot: int, num_tokens: int) -> bool:
        """Give the slot blocks for `num_tokens` tokens in all; False if too few are free."""
        missing = self.blocks_for(num_tokens) - int(self.slots.num_blocks[slot])
        if missing <= 0:
            return True
        if missing > self.pool.num_free:
            return False
        self._append_blocks(slot, self.pool.allocate(missing))
        return True

    def grow_by_one_block(self, slots: Int64) -> None:
        """One more block for each of the slots; the pool has that many."""
        blocks = self.pool.allocate(len(slots))
        index = self.slots.num_blocks[slots]
        self.slots.block_table[slots, index] = blocks
        self.slots.num_blocks[slots] = index + 1
        self.slots.capacity[slots] += self.block_size
        self._note_update(slots, index, blocks)

    def _append_blocks(self, slot: int, blocks: list[int]) -> None:
        start = int(self.slots.num_blocks[slot])
        end = start + len(blocks)
        self.slots.block_table[slot, start:end] = blocks
        self.slots.num_blocks[slot] = end
        self.slots.capacity[slot] = end * self.block_size
        self._note_update(slot, np.arange(start, end), blocks)

    def _note_update(self, slots: Int64 | int, index: Int64 | int, blocks: list[int]) -> None:
        update = np.empty((len(blocks), 3), dtype=np.int32)
        update[:, 0], update[:, 1], update[:, 2] = slots, index, blocks
        self.table_updates.append(update)

    def take_table_updates(self) -> Int32:
        """[U, 3] updates since the last call."""
        updates, self.table_updates = self.table_updates, []
        if not updates:
            return np.empty((0, 3), dtype=np.int32)
        return updates[0] if len(updates) == 1 else np.concatenate(updates)

    # Offering full blocks to the prefix cache

    def offer_blocks(self, slot: int, first: int, last: int) -> None:
        """Offer blocks [first, last) of a slot: tokens known, KV submitted."""
        if self.prefix_cache is None or last <= first:
            return
        request = self.slots.request[slot]
        assert request is not None
        tokens = self.slots.tokens[slot, : last * self.block_size]
        extend_chain(request.block_digests, request.cache_salt, tokens, self.block_size)
        table = self.slots.block_table[slot]
        for index in range(first, last):
            self.prefix_cache.offer(int(table[index]), request.block_digests, index, tokens)

    def forget_blocks(self, slot: int) -> None:
        """The slot's KV is not to be trusted (NaN): nobody may find it."""
        for block in self.slots.block_table[slot, : self.slots.num_blocks[slot]].tolist():
            self.forget(block)

    def forget(self, block: int) -> None:
        """Stop offering a block: it is evicted, or what it holds is not to be trusted."""
        if self.prefix_cache is not None:
            self.prefix_cache.forget(block)

    def forget_step(self, plan: StepPlan) -> list[int]:
        """A step failed: stop offering what it was to write, and all that was built on it meanwhile.

        Returns the slots that hold any of it.
        """
        slots = self.slots
        self.swap_space.drop_blocks(plan.swap_out[:, 1].tolist())
        garbage: set[int] = set(plan.swap_in[:, 0].tolist())
        for slot, start in zip(plan.row_slots.tolist(), plan.row_starts.tolist(), strict=True):
            garbage.update(slots.block_table[slot, start // self.block_size : slots.num_blocks[slot]].tolist())
        holders = []
        for slot in np.flatnonzero(slots.phase != Phase.FREE).tolist():
            table = slots.block_table[slot, : slots.num_blocks[slot]].tolist()
            first = next((index for index, block in enumerate(table) if block in garbage), None)
            if first is not None:
                holders.append(slot)
                for block in table[first:]:
                    self.forget(block)
        return holders

    # Leaving

    def leave(self, slot: int, phase: int) -> None:
        """Begin to free a slot; at once if none of its steps is in flight."""
        if self.slots.phase[slot] in (Phase.PREEMPTED, Phase.LEAVING):
            self.slots.phase[slot] = phase
            return
        self.slots.phase[slot] = phase
        if self.slots.last_step[slot] <= self.collected_step:
            self._vacate(slot)
        else:
            self._pending.append(slot)

    def vacate_pending(self) -> None:
        """Free the slots whose last step has been collected."""
        if self._pending:
            ready = [slot for slot in self._pending if self.slots.last_step[slot] <= self.collected_step]
            self._pending = [slot for slot in self._pending if self.slots.last_step[slot] > self.collected_step]
            for slot in ready:
                self._vacate(slot)

    def burn(self, slot: int) -> None:
        """Keep the seat of an ended request computing, at a fixed position that no live KV shares."""
        slots = self.slots
        slots.phase[slot] = Phase.BURNING
        if slots.num_computed[slot] >= slots.capacity[slot]:
            index = int(slots.num_blocks[slot])
            slots.block_table[slot, index] = SCRATCH_BLOCK
            self._note_update(slot, index, [SCRATCH_BLOCK])

    def _vacate(self, slot: int) -> None:
        request = self.slots.request[slot]
        assert request is not None
        if request.status is not RequestStatus.FINISHED:
            self.slots.save_outputs(slot)
        blocks = self.slots.block_table[slot, : self.slots.num_blocks[slot]].tolist()
        # Before its first step, a seat may rest on what a step in flight is to compute, and that step may fail.
        if self.slots.phase[slot] == Phase.PREEMPTED and self.slots.last_step[slot] >= 0:
            num_computed = int(self.slots.num_computed[slot])
            self.swap_space.swap_out(request.arrival_index, blocks[: self.blocks_for(num_computed)], num_computed)
        cacheable = self.prefix_cache.holds if self.prefix_cache is not None else (lambda block: False)
        self.pool.release(reversed(blocks), cacheable)
        self.slots.vacate(slot)
        if request.status is RequestStatus.WAITING:
            self._queue.push(request)


def known_tokens(request: Request) -> Int32:
    """[num_prompt + num_outputs] the tokens a new seat starts from."""
    if not request.output_token_ids:
        return request.prompt_token_ids
    return np.concatenate([request.prompt_token_ids, np.array(request.output_token_ids, dtype=np.int32)])
