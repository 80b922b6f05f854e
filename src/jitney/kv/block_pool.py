"""Who holds which KV block. Block ids and counts only; never tensors, never tokens.

A block is *held* (one or more requests refer to it), *cached* (nobody holds it, but the prefix cache may still hand it
out) or *blank*. New blocks are taken from the blank ones first, then from the cached ones, least recently used first.
Block 0 is scratch and never handed out: rows whose result nobody wants write there.
"""

from collections import OrderedDict
from collections.abc import Callable, Iterable

SCRATCH_BLOCK = 0


class BlockPool:
    """`num_blocks` usable blocks with ids 1..num_blocks.

    Args:
        num_blocks: usable blocks, scratch not counted.
        on_evict: called with a cached block's id when its contents are about to be overwritten.
    """

    def __init__(self, num_blocks: int, on_evict: Callable[[int], None] | None = None) -> None:
        self.num_blocks = num_blocks
        self._on_evict = on_evict or (lambda block: None)
        # Ascending ids are handed out first, so that a fresh pool gives physically consecutive blocks.
        self._blank = list(range(num_blocks, 0, -1))
        self._cached: OrderedDict[int, None] = OrderedDict()
        self._refs = [0] * (num_blocks + 1)
        self.num_releases = 0
        """Calls of `release` so far: while it stands still, no room is made."""

    @property
    def num_free(self) -> int:
        """Blocks that `allocate` can give: blank and cached ones."""
        return len(self._blank) + len(self._cached)

    @property
    def num_held(self) -> int:
        return self.num_blocks - self.num_free

    def ref_count(self, block: int) -> int:
        return self._refs[block]

    def count_cached(self, blocks: Iterable[int]) -> int:
        """How many of the blocks nobody holds, though the prefix cache still offers their contents."""
        return sum(map(self._cached.__contains__, blocks))

    def allocate(self, count: int) -> list[int]:
        """`count` blocks, each held once. The caller has made sure that `num_free` suffices."""
        assert count <= self.num_free, f"{count} blocks wanted, {self.num_free} free"
        blank = self._blank
        if count <= len(blank):
            blocks = [blank.pop() for _ in range(count)]
        else:
            blocks = blank[::-1]
            blank.clear()
            while len(blocks) < count:
                block, _ = self._cached.popitem(last=False)
                self._on_evict(block)
                blocks.append(block)
        for block in blocks:
            self._refs[block] = 1
        return blocks

    def share(self, block: int) -> None:
        """One more holder for a held or cached block."""
        if self._refs[block] == 0:
            del self._cached[block]
        self._refs[block] += 1

    def release(self, blocks: Iterable[int], is_cacheable: Callable[[int], bool] = lambda block: False) -> None:
        """One holder less for each block. Blocks that nobody holds now become cached if `is_cacheable`, else blank.

        Give a request's blocks last first: the end of a sequence is then evicted before its beginning, which more
        future requests can share.
        """
        self.num_releases += 1
        refs = self._refs
        for block in blocks:
            refs[block] -= 1
            assert refs[block] >= 0, f"block {block} released more often than held"
            if refs[block] == 0:
                if is_cacheable(block):
                    self._cached[block] = None
                else:
                    self._blank.append(block)

    def drop(self, block: int) -> None:
        """Make a cached block blank: the prefix cache no longer offers it."""
        if block in self._cached:
            del self._cached[block]
            self._blank.append(block)

    def check(self) -> None:
        """Assert that every block is in exactly one place."""
        held = {block for block in range(1, self.num_blocks + 1) if self._refs[block]}
        blank, cached = set(self._blank), set(self._cached)
        assert len(blank) == len(self._blank), "a block is blank twice"
        assert not held & blank and not held & cached and not blank & cached, "a block is in two places"
        assert len(held) + len(blank) + len(cached) == self.num_blocks, "a block is lost"
