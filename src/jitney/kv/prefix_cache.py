"""Which full block holds which tokens, so that requests that start alike share KV. Knows token ids, not requests.

A block's content is named by a hash chain: digest(block) = hash(digest of the block before, the block's tokens), so a
name stands for the whole prefix (as in vLLM's automatic prefix caching). The chain starts from the cache salt: tenants
with different salts never share. A hit is verified against the stored tokens, so a hash collision cannot mix two
prompts.
"""

from dataclasses import dataclass
from hashlib import blake2b

from jitney.kv.block_pool import BlockPool
from jitney.types import Int32


@dataclass(frozen=True, slots=True)
class _Entry:
    block: int
    parent: bytes
    tokens: bytes


def chain_root(salt: str) -> bytes:
    """The digest that stands before the first block of a prompt."""
    return blake2b(salt.encode(), digest_size=16).digest()


def extend_chain(digests: list[bytes], root: bytes, tokens: Int32, block_size: int) -> None:
    """Append the digests of the full blocks of `tokens` that `digests` does not cover yet."""
    for index in range(len(digests), len(tokens) // block_size):
        parent = digests[index - 1] if index else root
        content = tokens[index * block_size : (index + 1) * block_size].tobytes()
        digests.append(blake2b(content, key=parent, digest_size=16).digest())


class PrefixCache:
    """Finds and offers blocks by content. `pool` must call `forget` when it evicts a block."""

    def __init__(self, pool: BlockPool, block_size: int) -> None:
        self._pool = pool
        self._block_size = block_size
        self._by_digest: dict[bytes, _Entry] = {}
        self._digest_of: dict[int, bytes] = {}

    def __len__(self) -> int:
        return len(self._by_digest)

    def holds(self, block: int) -> bool:
        """Whether the block's content is on offer."""
        return block in self._digest_of

    def match(self, digests: list[bytes], root: bytes, tokens: Int32, limit: int) -> list[int]:
        """The blocks that hold the longest known prefix of `tokens`, at most `limit` of them. They are not held yet."""
        blocks: list[int] = []
        size, parent = self._block_size, root
        for index, digest in enumerate(digests[:limit]):
            entry = self._by_digest.get(digest)
            if entry is None or entry.parent != parent:
                break
            if entry.tokens != tokens[index * size : (index + 1) * size].tobytes():
                break
            blocks.append(entry.block)
            parent = digest
        return blocks

    def offer(self, block: int, digests: list[bytes], index: int, root: bytes, tokens: Int32) -> bool:
        """Offer a held block as the content of block `index` of `tokens`; False if that content is offered already."""
        digest = digests[index]
        if digest in self._by_digest:
            return False
        size = self._block_size
        parent = digests[index - 1] if index else root
        self._by_digest[digest] = _Entry(block, parent, tokens[index * size : (index + 1) * size].tobytes())
        self._digest_of[block] = digest
        return True

    def forget(self, block: int) -> None:
        """Stop offering a block (evicted, or its contents are not to be trusted). Harmless when it is not offered."""
        digest = self._digest_of.pop(block, None)
        if digest is not None:
            del self._by_digest[digest]
            self._pool.drop(block)
