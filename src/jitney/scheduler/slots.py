"""The running requests as a struct of arrays: one index, the slot, into every array.

A decode-only step touches all running requests through a dozen numpy operations and no Python loop. Plain data: who
enters, leaves and computes is decided in scheduler.py.
"""

from typing import Final

import numpy as np

from jitney.types import Int32, Request


class Phase:
    """What a slot is doing. Moves: FREE -> PREFILL -> DECODE -> LAST, and from any of them to one of the others.

    Plain integers and no Enum: they are compared with whole arrays in every step.
    """

    FREE: Final = 0
    PREFILL: Final = 1
    """Tokens known to the host are still to be computed (a prompt, or a preempted request's prompt and output)."""
    DECODE: Final = 2
    """One token a step; its input is on the device."""
    LAST: Final = 3
    """The last token allowed by length is in flight; nothing more will be scheduled."""
    BURNING: Final = 4
    """Static batching: the request has ended, but its seat is computed until the batch ends."""
    PREEMPTED: Final = 5
    """Makes room for an older request; tokens in flight still count. Waits for its last step, then queues again."""
    LEAVING: Final = 6
    """Tokens in flight are thrown away. Waits for its last step, then the slot is free."""


_HAS_SEAT = np.zeros(Phase.LEAVING + 1, dtype=np.bool_)
_HAS_SEAT[[Phase.PREFILL, Phase.DECODE, Phase.BURNING]] = True
_COUNTS = np.zeros(Phase.LEAVING + 1, dtype=np.bool_)
_COUNTS[[Phase.DECODE, Phase.LAST, Phase.PREEMPTED]] = True


class Slots:
    """State of `num_slots` seats. All lengths are in tokens unless named otherwise."""

    def __init__(self, num_slots: int, max_model_len: int, block_size: int) -> None:
        max_blocks = -(-max_model_len // block_size)
        self.request: list[Request | None] = [None] * num_slots
        self.phase = np.zeros(num_slots, dtype=np.uint8)
        self.num_prompt = np.zeros(num_slots, dtype=np.int64)
        self.num_tokens = np.zeros(num_slots, dtype=np.int64)
        """Tokens the host knows: prompt and collected outputs."""
        self.num_computed = np.zeros(num_slots, dtype=np.int64)
        """Tokens whose KV is in the cache once all submitted steps have run."""
        self.tokens_left = np.zeros(num_slots, dtype=np.int64)
        """Outputs still to be scheduled before the length limit."""
        self.capacity = np.zeros(num_slots, dtype=np.int64)
        """Tokens that fit in the blocks of the slot."""
        self.num_blocks = np.zeros(num_slots, dtype=np.int64)
        self.last_step = np.full(num_slots, -1, dtype=np.int64)
        """The newest submitted step with a row of this slot: its blocks may be reused once that is collected."""
        self.arrival_index = np.zeros(num_slots, dtype=np.int64)
        self.priority = np.zeros(num_slots, dtype=np.int64)
        self.watched = np.zeros(num_slots, dtype=np.bool_)
        """Somebody listens to each token: the slot costs Python work every step."""
        self.stop_ids = np.full((num_slots, 4), -1, dtype=np.int32)
        """Token ids that end the request, padded with -1."""
        self.tokens = np.zeros((num_slots, max_model_len), dtype=np.int32)
        self.block_table = np.zeros((num_slots, max_blocks), dtype=np.int32)
        self._free = list(range(num_slots - 1, -1, -1))

    @property
    def num_slots(self) -> int:
        return len(self.phase)

    @property
    def num_occupied(self) -> int:
        return self.num_slots - len(self._free)

    @property
    def num_seated(self) -> int:
        """Requests that may have a row in the next step; those that only wait for their last one have no seat."""
        return int(np.count_nonzero(_HAS_SEAT[self.phase]))

    def where(self, *phases: int) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
        """Slots in one of the phases, ascending."""
        mask = self.phase == phases[0]
        for phase in phases[1:]:
            mask |= self.phase == phase
        return np.flatnonzero(mask)

    def counts(self, slots: Int32) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
        """Whether a token that arrives for each slot belongs to its request (else it is thrown away)."""
        return _COUNTS[self.phase[slots]]

    def take(self, request: Request) -> int:
        """Seat a request: its tokens are known, nothing is computed, no blocks yet."""
        slot = self._free.pop()
        prompt, outputs = request.prompt_token_ids, request.output_token_ids
        num_tokens = len(prompt) + len(outputs)
        self.tokens[slot, : len(prompt)] = prompt
        self.tokens[slot, len(prompt) : num_tokens] = outputs
        self.request[slot] = request
        self.phase[slot] = Phase.PREFILL
        self.num_prompt[slot] = len(prompt)
        self.num_tokens[slot] = num_tokens
        self.num_computed[slot] = 0
        self.tokens_left[slot] = request.max_tokens - len(outputs)
        self.capacity[slot] = self.num_blocks[slot] = 0
        self.last_step[slot] = -1
        self.arrival_index[slot] = request.arrival_index
        self.priority[slot] = request.priority
        self.watched[slot] = request.streams
        self._set_stop_ids(slot, request.stop_token_ids)
        request.slot = slot
        return slot

    def save_outputs(self, slot: int) -> None:
        """Copy the collected outputs into the request."""
        request = self.request[slot]
        assert request is not None
        request.output_token_ids = self.tokens[slot, self.num_prompt[slot] : self.num_tokens[slot]].tolist()

    def vacate(self, slot: int) -> None:
        request = self.request[slot]
        assert request is not None
        request.slot = None
        self.request[slot] = None
        self.phase[slot] = Phase.FREE
        self._free.append(slot)

    def _set_stop_ids(self, slot: int, ids: tuple[int, ...]) -> None:
        width = self.stop_ids.shape[1]
        if len(ids) > width:
            extra = np.full((self.num_slots, len(ids) - width), -1, dtype=np.int32)
            self.stop_ids = np.concatenate([self.stop_ids, extra], axis=1)
        self.stop_ids[slot] = -1
        self.stop_ids[slot, : len(ids)] = ids
