import torch

from jitney.runner.kv_cache import allocate_kv_cache


def test_the_cache_has_the_layers_shapes_and_a_clean_scratch_block(model):
    cache = allocate_kv_cache(model.spec, 7, 4, torch.device("cpu"))
    assert [tuple(t.shape) for t in (*cache.keys, *cache.values)] == [(7, 4, 1, 1)] * 2
    assert cache.keys[0].dtype == torch.float32
    assert not cache.keys[0][0].any() and not cache.values[0][0].any()
