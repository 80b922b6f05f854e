import pytest
import torch

from jitney.config import EngineConfig
from jitney.errors import ConfigError
from jitney.models.base import LayerSpec, ModelSpec
from jitney.runner.kv_sizing import MAX_AUTO_BYTES, num_host_kv_blocks, num_kv_blocks, resolve_max_model_len

SPEC = ModelSpec("toy", "Toy", 100, 2048, torch.float32, (LayerSpec(2, 32), LayerSpec(2, 32)), 0)
BLOCK = 16 * 2 * 2 * 2 * 32 * 4  # tokens, K and V, layers, heads, head size, bytes


def test_with_memory_to_spare_all_seats_get_full_length():
    config = EngineConfig(max_num_seqs=5)
    assert num_kv_blocks(SPEC, config, 100, 10**12) == 5 * 7


def test_at_most_half_of_the_free_memory_is_taken_scratch_block_included():
    assert num_kv_blocks(SPEC, EngineConfig(), 100, 2 * 51 * BLOCK) == 50
    assert num_kv_blocks(SPEC, EngineConfig(), 100, 2 * 51 * BLOCK - 1) == 49


def test_the_automatic_size_has_a_ceiling():
    config = EngineConfig(max_num_seqs=10_000, max_num_batched_tokens=10_000)
    assert num_kv_blocks(SPEC, config, 2048, 10**15) == MAX_AUTO_BYTES // BLOCK - 1


def test_memory_for_less_than_one_request_is_refused_with_numbers_and_knobs():
    with pytest.raises(ConfigError) as error:
        num_kv_blocks(SPEC, EngineConfig(), 1000, 2 * 60 * BLOCK)
    for words in ("max_model_len=1000", "63 blocks", "block_size=16", "lower max_model_len to 944", "num_kv_blocks"):
        assert words in str(error.value)
    assert num_kv_blocks(SPEC, EngineConfig(), 944, 2 * 60 * BLOCK) == 59


def test_a_given_number_of_blocks_is_used_as_it_is():
    assert num_kv_blocks(SPEC, EngineConfig(num_kv_blocks=70), 1000, 71 * BLOCK) == 70


def test_a_given_number_of_blocks_must_hold_one_request_and_fit_in_memory():
    with pytest.raises(ConfigError, match=r"num_kv_blocks=62 .* raise num_kv_blocks to 63"):
        num_kv_blocks(SPEC, EngineConfig(num_kv_blocks=62), 1000, 10**12)
    with pytest.raises(ConfigError, match=r"num_kv_blocks=70 .* lower num_kv_blocks to 69"):
        num_kv_blocks(SPEC, EngineConfig(num_kv_blocks=70), 1000, 71 * BLOCK - 1)


def test_the_longest_sequence_is_the_models_or_what_the_cache_holds():
    assert resolve_max_model_len(SPEC, EngineConfig(), 10**12) == 2048
    assert resolve_max_model_len(SPEC, EngineConfig(), 2 * 51 * BLOCK) == 50 * 16
    assert resolve_max_model_len(SPEC, EngineConfig(num_kv_blocks=3), 10**12) == 48
    assert resolve_max_model_len(SPEC, EngineConfig(max_model_len=77), 10**12) == 77


def test_a_length_beyond_the_model_or_no_memory_at_all_is_refused():
    with pytest.raises(ConfigError, match=r"max_model_len=2049 is above the 2048"):
        resolve_max_model_len(SPEC, EngineConfig(max_model_len=2049), 10**12)
    with pytest.raises(ConfigError, match="not even one KV block"):
        resolve_max_model_len(SPEC, EngineConfig(), BLOCK)


def test_swap_space_is_counted_in_whole_blocks_and_is_none_by_default():
    assert num_host_kv_blocks(SPEC, EngineConfig(swap_space=0.5), 2**30) == 2**29 // BLOCK
    assert num_host_kv_blocks(SPEC, EngineConfig(swap_space=1.9 * BLOCK / 2**30), 2**30) == 1
    assert num_host_kv_blocks(SPEC, EngineConfig(), 0) == 0


def test_swap_space_beyond_the_free_memory_or_below_one_block_is_refused_with_numbers():
    with pytest.raises(ConfigError, match=r"swap_space=2.0 GiB is 2,048.0 MiB, and 1,536.0 MiB .* to 1.5 or less"):
        num_host_kv_blocks(SPEC, EngineConfig(swap_space=2.0), 3 * 2**29)
    with pytest.raises(ConfigError, match=r"swap_space=1e-06 GiB holds not even one KV block of block_size=16"):
        num_host_kv_blocks(SPEC, EngineConfig(swap_space=1e-6), 2**30)
