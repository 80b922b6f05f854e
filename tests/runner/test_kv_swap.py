import numpy as np
import pytest
import torch

from jitney.kernels.paged_kv import PagedKVCache
from jitney.runner import kv_swap
from jitney.runner.kv_swap import KVSwap, swap_device_bytes

BLOCK_SIZE = 4
HEADS = [(2, 8), (1, 16), (3, 5)]
"""(num_kv_heads, head_dim) of each layer."""
BLOCK_BYTES = sum(2 * BLOCK_SIZE * heads * dim for heads, dim in HEADS) * 2


def random_cache(num_blocks: int) -> PagedKVCache:
    generator = torch.Generator().manual_seed(0)

    def tensors() -> tuple[torch.Tensor, ...]:
        shapes = [(num_blocks, BLOCK_SIZE, *layer) for layer in HEADS]
        return tuple(torch.randn(shape, generator=generator).to(torch.bfloat16) for shape in shapes)

    return PagedKVCache(tensors(), tensors(), BLOCK_SIZE)


def copies(*pairs: tuple[int, int]) -> tuple[torch.Tensor, np.ndarray]:
    host_pairs = np.array(pairs, dtype=np.int32).reshape(-1, 2)
    return torch.from_numpy(host_pairs), host_pairs


def test_blocks_come_back_as_they_were_in_every_layer_and_nothing_else_changes() -> None:
    out = [(3, 0), (1, 4), (7, 2), (8, 3), (2, 1)]
    back = [(9, 2), (3, 4), (5, 0), (1, 1), (6, 3)]
    came_from = {host_block: block for block, host_block in out}
    for blocks_at_once in (1, 2, 5, 100):
        cache, before = random_cache(10), random_cache(10)
        swap = KVSwap(cache, num_host_blocks=5, staging_bytes=blocks_at_once * BLOCK_BYTES)
        swap.copy_out(*copies(*out))
        for layer in (*cache.keys, *cache.values):
            layer[[1, 2, 3, 7, 8]] = torch.nan  # others write there meanwhile
        swap.copy_in(*copies(*back))
        for layer, old in zip((*cache.keys, *cache.values), (*before.keys, *before.values), strict=True):
            for block, host_block in back:
                assert torch.equal(layer[block], old[came_from[host_block]])
            assert torch.equal(layer[[0, 4]], old[[0, 4]])
            assert layer[[2, 7, 8]].isnan().all()


def test_a_host_block_keeps_its_contents_until_it_is_written_again() -> None:
    cache = random_cache(4)
    old = [layer.clone() for layer in cache.keys]
    swap = KVSwap(cache, num_host_blocks=2)
    swap.copy_out(*copies((1, 0), (2, 1)))
    swap.copy_out(*copies((3, 1)))
    swap.copy_in(*copies((0, 0), (1, 1)))
    for layer, before in zip(cache.keys, old, strict=True):
        assert torch.equal(layer[0], before[1]) and torch.equal(layer[1], before[3])


def test_without_host_blocks_no_copies_are_no_work() -> None:
    swap = KVSwap(random_cache(2), num_host_blocks=0)
    swap.copy_out(*copies())
    swap.copy_in(*copies())


@pytest.mark.parametrize("num_host_blocks", [0, 1, 3, 40])
@pytest.mark.parametrize("staging_bytes", [1, 5 * BLOCK_BYTES])
def test_it_takes_no_more_of_the_device_than_it_says(
    num_host_blocks: int, staging_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kv_swap, "STAGING_BYTES", staging_bytes)
    swap = KVSwap(random_cache(2), num_host_blocks, staging_bytes)
    assert 2 * swap._staging.nbytes <= swap_device_bytes(num_host_blocks * BLOCK_BYTES, BLOCK_BYTES)
