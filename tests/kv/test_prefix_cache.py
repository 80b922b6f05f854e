import numpy as np
import pytest

from jitney.kv.block_pool import BlockPool
from jitney.kv.prefix_cache import PrefixCache, extend_chain

TOKENS = np.arange(12, dtype=np.int32)


@pytest.fixture
def cache() -> PrefixCache:
    return PrefixCache(BlockPool(8), block_size=4)


def chain(tokens: np.ndarray, salt: str = "") -> list[bytes]:
    digests: list[bytes] = []
    extend_chain(digests, salt, tokens, 4)
    return digests


def offer_all(cache: PrefixCache, tokens: np.ndarray, blocks: list[int]) -> None:
    for index, block in enumerate(blocks):
        assert cache.offer(block, chain(tokens), index, tokens)


def test_the_longest_known_prefix_is_found(cache: PrefixCache) -> None:
    offer_all(cache, TOKENS, [5, 3])
    assert cache.match(chain(TOKENS), TOKENS, limit=3) == [5, 3]
    assert cache.match(chain(TOKENS), TOKENS, limit=1) == [5]
    other = np.concatenate([TOKENS[:4], TOKENS[:4]])
    assert cache.match(chain(other), other, limit=2) == [5]


def test_the_same_tokens_after_another_beginning_are_another_content(cache: PrefixCache) -> None:
    offer_all(cache, TOKENS, [1, 2, 3])
    shifted = TOKENS[4:]
    assert cache.match(chain(shifted), shifted, limit=2) == []


def test_a_partial_block_has_no_name() -> None:
    assert len(chain(TOKENS[:7])) == 2, "the salt and one full block"


def test_a_collision_of_digests_is_not_a_hit(cache: PrefixCache) -> None:
    offer_all(cache, TOKENS, [1])
    impostor = TOKENS[::-1].copy()
    assert cache.match(chain(TOKENS), impostor, limit=1) == [], "the digest is right, the tokens are not"


def test_the_second_block_with_the_same_content_is_not_offered(cache: PrefixCache) -> None:
    offer_all(cache, TOKENS, [1])
    assert not cache.offer(2, chain(TOKENS), 0, TOKENS)
    assert not cache.holds(2)


def test_a_forgotten_block_is_found_no_more(cache: PrefixCache) -> None:
    offer_all(cache, TOKENS, [1, 2, 3])
    cache.forget(2)
    cache.forget(2)
    assert cache.match(chain(TOKENS), TOKENS, limit=3) == [1]
    assert len(cache) == 2


def test_another_salt_is_another_content(cache: PrefixCache) -> None:
    offer_all(cache, TOKENS, [1])
    assert cache.match(chain(TOKENS, salt="tenant"), TOKENS, limit=3) == []
