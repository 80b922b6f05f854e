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


def extend_chain(digests: list[bytes], salt: str, tokens: Int32, block_size: int) -> None:
    """Complete the chain of `tokens`: digests[0] stands for the salt, digests[i + 1] for all up to full block i."""
    if not digests:
        digests.append(blake2b(salt.encode(), digest_size=16).digest())
    for index in range(len(digests) - 1, len(tokens) // block_size):
        content = tokens[index * block_size : (index + 1) * block_size].tobytes()
        digests.append(blake2b(content, key=digests[index], digest_size=16).digest())


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

    def offers(self, digest: bytes) -> bool:
        """Whether some block is on offer under this name."""
        return digest in self._by_digest

    def match(self, digests: list[bytes], tokens: Int32, limit: int) -> list[int]:
        """The blocks that hold the longest known prefix of `tokens`, at most `limit` of them. They are not held yet."""
        blocks: list[int] = []
        content, size = tokens.tobytes(), self._block_size * tokens.itemsize
        for index in range(min(limit, len(digests) - 1)):
            entry = self._by_digest.get(digests[index + 1])
            if entry is None or entry.parent != digests[index]:
                break
            if entry.tokens != content[index * size : (index + 1) * size]:
                break
            blocks.append(entry.block)
        return blocks

    def offer(self, block: int, digests: list[bytes], index: int, tokens: Int32) -> bool:
        """Offer a held block as the content of block `index` of `tokens`; False if that content is offered already."""
        digest = digests[index + 1]
        if digest in self._by_digest:
            return False
        content = tokens[index * self._block_size : (index + 1) * self._block_size].tobytes()
        self._by_digest[digest] = _Entry(block, digests[index], content)
        self._digest_of[block] = digest
        return True

    def forget(self, block: int) -> None:
        """Stop offering a block (evicted, or its contents are not to be trusted). Harmless when it is not offered."""
        digest = self._digest_of.pop(block, None)
        if digest is not None:
            del self._by_digest[digest]
            self._pool.drop(block)
