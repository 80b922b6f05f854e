"""Runners without a model. They obey the very same step inputs as a real one; numpy only.

`ToyRunner` has a real paged KV cache: what it keeps of a token depends on the token before it, as in a model, and each
new token on the whole context it reads back through the block table. A block reused too early, a wrong table entry, a
lost token, a stale input, or KV built on garbage changes the output. It is the oracle for the scheduler. `NullRunner`
computes nothing at all.
"""

import numpy as np
from numpy.typing import NDArray

from jitney.types import Int32, Int64, SlotAdmission, StepInputs, StepOutput

_MASK = 2**64 - 1


class ToyRunner:
    """Next token = hash of (the context's chained values, seed) modulo `vocab_size`.

    Raises AssertionError in `run` when the cache does not hold what the row's positions promise.
    """

    def __init__(
        self, vocab_size: int, num_kv_blocks: int, block_size: int, num_slots: int, num_host_kv_blocks: int = 0
    ) -> None:
        self._vocab_size = vocab_size
        self._block_size = block_size
        self._values = np.zeros((num_kv_blocks + 1) * block_size, dtype=np.uint64)
        self._positions = np.full((num_kv_blocks + 1) * block_size, -1, dtype=np.int64)
        self._host_values = np.zeros((num_host_kv_blocks, block_size), dtype=np.uint64)
        self._host_positions = np.full((num_host_kv_blocks, block_size), -1, dtype=np.int64)
        self._table = np.zeros((num_slots, num_kv_blocks + 2), dtype=np.int64)
        self._last_token = np.zeros(num_slots, dtype=np.int64)
        self._admission: dict[int, SlotAdmission] = {}

    def run(self, inputs: StepInputs) -> StepOutput:
        slots, starts, lens, sample_rows, prompt, *_ = _cut(inputs)
        self._update_slots(inputs)
        tokens = np.concatenate([self._last_token[slots[: inputs.num_decode_rows]], prompt])
        ends = np.cumsum(lens)
        for slot, start, length, end in zip(slots, starts, lens, ends, strict=True):
            where = self._where(slot, start, start + length)
            before = int(self._values[self._where(slot, start - 1, start)][0]) if start else 0
            self._values[where] = _chain(tokens[end - length : end].tolist(), before)
            self._positions[where] = np.arange(start, start + length)
        sampled = np.array([self._next(slots[row], starts[row] + lens[row]) for row in sample_rows], dtype=np.int32)
        self._last_token[slots[sample_rows]] = sampled
        return StepOutput(sampled, np.ones(len(sampled), dtype=np.bool_))

    def spoil(self, inputs: StepInputs) -> None:
        """What a step that fails half-way leaves behind: the slots' state is that of after it, its KV is garbage."""
        slots, starts, lens, *_ = _cut(inputs)
        self._update_slots(inputs)
        for slot, start, length in zip(slots, starts, lens, strict=True):
            where = self._where(slot, start, start + length)
            self._values[where] = 0
            self._positions[where] = np.arange(start, start + length)

    def _update_slots(self, inputs: StepInputs) -> None:
        *_, updates, swap_out, swap_in = _cut(inputs)
        for slot, index, block in updates.reshape(-1, 3):
            self._table[slot, index] = block
        for on_device, on_host in (
            (self._values.reshape(-1, self._block_size), self._host_values),
            (self._positions.reshape(-1, self._block_size), self._host_positions),
        ):
            for block, host_block in swap_out.reshape(-1, 2):
                on_host[host_block] = on_device[block]
            for block, host_block in swap_in.reshape(-1, 2):
                on_device[block] = on_host[host_block]
        for admission in inputs.admissions:
            self._admission[admission.slot] = admission

    def _where(self, slot: int, start: int, end: int) -> Int64:
        position = np.arange(start, end)
        blocks: Int64 = self._table[slot, position // self._block_size]
        return blocks * self._block_size + position % self._block_size

    def _next(self, slot: int, length: int) -> int:
        where = self._where(slot, 0, length)
        is_scratch = where < self._block_size  # rows nobody waits for share it
        intact = (self._positions[where] == np.arange(length)) | is_scratch
        assert intact.all(), f"slot {slot}: its KV blocks hold something else"
        return _pick(self._values[where], self._admission[slot].seed, self._vocab_size)


def _cut(inputs: StepInputs) -> list[Int32]:
    """The sections of `inputs.data` (see StepInputs)."""
    return np.split(inputs.data, np.cumsum(inputs.section_sizes()))[:-1]


def toy_next_token(context: Int32, seed: int, vocab_size: int) -> int:
    """The token ToyRunner puts after `context`: what a test expects, computed without any cache."""
    return _pick(_chain(context.tolist(), 0), seed, vocab_size)


def _chain(tokens: list[int], value: int) -> NDArray[np.uint64]:
    """What the cache keeps of each token: a hash of it and of what is kept of the token before."""
    values = []
    for token in tokens:
        value = ((value ^ (token + 1)) * 0x9E3779B97F4A7C15 + 1) & _MASK
        values.append(value)
    return np.array(values, dtype=np.uint64)


def _pick(values: NDArray[np.uint64], seed: int, vocab_size: int) -> int:
    weights = (np.arange(1, len(values) + 1, dtype=np.uint64) * np.uint64(2654435761)) ^ np.uint64(seed)
    total = int(np.bitwise_xor.reduce(values * (weights | np.uint64(1))))
    return (total >> 17) % vocab_size


class NullRunner:
    """Gives token `token_id` to every row and touches nothing: what is left is the host's own cost."""

    def __init__(self, token_id: int = 1) -> None:
        self._token_id = token_id

    def run(self, inputs: StepInputs) -> StepOutput:
        count = inputs.num_sample_rows
        return StepOutput(np.full(count, self._token_id, dtype=np.int32), np.ones(count, dtype=np.bool_))
