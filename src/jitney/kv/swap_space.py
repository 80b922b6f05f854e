"""Where the KV of preempted requests waits: blocks of host memory. Knows block ids; no tensors and no requests.

A preempted request's blocks are copied out, and copied back when it has a seat again, so that nothing is computed twice
(the `swap` mode of Kwon et al., *Efficient Memory Management for LLM Serving with PagedAttention*, SOSP 2023). The
copies are part of a step: first all that go out, then all that come in, then the forward pass. So the scheduler may
give a device block to somebody else in the very plan that copies it out. A host block that is copied in is given to
nobody else before the next step, since the copies out of the same step would overwrite it first.
"""

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from jitney.types import Int32, no_block_copies


@dataclass(frozen=True, slots=True)
class _Swapped:
    num_tokens: int
    host_blocks: list[int]


class SwapSpace:
    """`num_blocks` host blocks with ids 0..num_blocks - 1. An owner is whatever integer names a request."""

    def __init__(self, num_blocks: int) -> None:
        self.num_blocks = num_blocks
        self._free = list(range(num_blocks - 1, -1, -1))
        self._swapped: dict[int, _Swapped] = {}
        # Of the step being planned:
        self._device_block_of: dict[int, int] = {}  # host block -> the device block to copy out to it
        self._copies_in: list[tuple[int, int]] = []
        self._read_in: list[int] = []  # host blocks that are free once the step has been planned

    @property
    def num_free(self) -> int:
        return len(self._free)

    def num_tokens(self, owner: int) -> int:
        """Tokens whose KV is kept for the owner; 0 if none is."""
        swapped = self._swapped.get(owner)
        return swapped.num_tokens if swapped else 0

    def swap_out(self, owner: int, device_blocks: list[int], num_tokens: int) -> bool:
        """Keep the owner's blocks, in order, which hold `num_tokens` tokens; False if there is no room for all."""
        if len(device_blocks) > len(self._free):
            return False
        host_blocks = [self._free.pop() for _ in device_blocks]
        self._swapped[owner] = _Swapped(num_tokens, host_blocks)
        self._device_block_of.update(zip(host_blocks, device_blocks, strict=True))
        return True

    def swap_in(self, owner: int, device_blocks: list[int]) -> None:
        """Copy the owner's last blocks back, to `device_blocks` in order, and keep nothing for it any longer."""
        host_blocks = self._swapped.pop(owner).host_blocks
        wanted = host_blocks[len(host_blocks) - len(device_blocks) :]
        self._copies_in += zip(device_blocks, wanted, strict=True)
        self._read_in += host_blocks

    def drop(self, owner: int) -> None:
        """Keep nothing for the owner: it has ended, or others have what it needs. Harmless if nothing is kept."""
        swapped = self._swapped.pop(owner, None)
        if swapped is not None:
            for block in swapped.host_blocks:
                self._device_block_of.pop(block, None)
            self._free += reversed(swapped.host_blocks)

    def drop_blocks(self, host_blocks: Iterable[int]) -> None:
        """The step that was to fill these host blocks may not have run: keep nothing that rests on them."""
        doubtful = set(host_blocks)
        for owner in [key for key, swapped in self._swapped.items() if not doubtful.isdisjoint(swapped.host_blocks)]:
            self.drop(owner)

    def take_copies(self) -> tuple[Int32, Int32]:
        """The copies of the step being planned: out and in, [N, 2] (device block, host block) each."""
        if not self._device_block_of and not self._read_in:
            return no_block_copies(), no_block_copies()
        copies_out = [(device, host) for host, device in self._device_block_of.items()]
        copies_in = self._copies_in
        self._free += reversed(self._read_in)
        self._device_block_of, self._copies_in, self._read_in = {}, [], []
        return _pairs(copies_out), _pairs(copies_in)

    def check(self) -> None:
        """Assert that every host block is in exactly one place."""
        kept = [block for swapped in self._swapped.values() for block in swapped.host_blocks]
        everywhere = sorted(self._free + kept + self._read_in)
        assert everywhere == list(range(self.num_blocks)), "a host block is lost, or in two places"
        filling = set(self._device_block_of)
        assert filling <= set(kept + self._read_in), "a free host block is about to be written"


def _pairs(copies: list[tuple[int, int]]) -> Int32:
    return np.array(copies, dtype=np.int32).reshape(-1, 2)
