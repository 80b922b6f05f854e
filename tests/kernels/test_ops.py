"""The reference operations are those of transformers' modules; the same checks hold for any other implementation."""

import pytest
import torch
from transformers import Gemma2Config, LlamaConfig
from transformers.models.gemma2.modeling_gemma2 import Gemma2MLP, Gemma2RMSNorm
from transformers.models.llama.modeling_llama import LlamaMLP, LlamaRMSNorm, apply_rotary_pos_emb

from jitney.kernels.ops import TorchOps

OPS = TorchOps()
DTYPES = [torch.float32, torch.bfloat16, torch.float16]


def close(ours: torch.Tensor, theirs: torch.Tensor) -> None:
    """Equal in float32; in half precision within two roundings, since ours rounds once where theirs may twice."""
    assert ours.dtype is theirs.dtype and ours.shape == theirs.shape
    step = 1e-6 if ours.dtype is torch.float32 else 2 * torch.finfo(ours.dtype).eps
    torch.testing.assert_close(ours, theirs, rtol=step, atol=step)


def random(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape))).to(dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("module", "offset"), [(LlamaRMSNorm, 0.0), (Gemma2RMSNorm, 1.0)])
def test_rms_norm_is_that_of_transformers(module: type[torch.nn.Module], offset: float, dtype: torch.dtype) -> None:
    norm = module(40, eps=1e-3).to(dtype)
    with torch.no_grad():
        norm.weight.copy_(random(40))
        x = random(7, 3, 80, dtype=dtype)[..., :40]
        close(OPS.rms_norm(x, norm.weight, 1e-3, offset), norm(x))


@pytest.mark.parametrize("dtype", DTYPES)
def test_add_rms_norm_norms_the_rounded_sum_and_hands_it_on(dtype: torch.dtype) -> None:
    x, residual, weight = random(5, 32, dtype=dtype), random(5, 32, dtype=dtype) * 100, random(32, dtype=dtype)
    normed, new_residual = OPS.add_rms_norm(x, residual, weight, 1e-6, 1.0)
    assert torch.equal(new_residual, x + residual)
    assert torch.equal(normed, OPS.rms_norm(new_residual, weight, 1e-6, 1.0))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("rotated", [16, 8, 0])
def test_rope_rotates_the_first_values_of_each_head(rotated: int, dtype: torch.dtype) -> None:
    qkv = random(6, 8, 16, dtype=dtype)
    query, key, value = qkv.split((4, 2, 2), dim=1)
    angles = torch.arange(50.0)[:, None] * torch.logspace(0, -3, rotated // 2)
    positions = torch.tensor([0, 1, 2, 49, 7, 7])
    caches = torch.full((2, 5, 4, 2, 16), float("nan"), dtype=dtype)
    kv_index = torch.tensor([4, 5, 6, 19, 0, 12])
    got = OPS.rope_and_write_kv(query, key, value, angles.cos(), angles.sin(), positions, *caches, kv_index)
    full = torch.cat((angles, angles), dim=-1)[positions]
    expected_q, expected_k = apply_rotary_pos_emb(
        query[..., :rotated].float(), key[..., :rotated].float(), full.cos(), full.sin(), unsqueeze_dim=1
    )
    close(got, torch.cat((expected_q.to(dtype), query[..., rotated:]), dim=-1))
    close(caches[0].flatten(0, 1)[kv_index], torch.cat((expected_k.to(dtype), key[..., rotated:]), dim=-1))
    assert torch.equal(caches[1].flatten(0, 1)[kv_index], value)
    assert int(caches[0].isnan().any(-1).any(-1).sum()) == 20 - 6, "nothing else is written"


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_gated_activation_is_the_inside_of_transformers_mlp(dtype: torch.dtype) -> None:
    size = {"hidden_size": 8, "intermediate_size": 8, "num_attention_heads": 2, "num_key_value_heads": 2}
    for mlp, activation in ((LlamaMLP(LlamaConfig(**size)), "silu"), (Gemma2MLP(Gemma2Config(**size)), "gelu_tanh")):
        for projection in (mlp.gate_proj, mlp.up_proj, mlp.down_proj):
            torch.nn.init.eye_(projection.weight)
        x = random(9, 8, dtype=dtype) * 4
        with torch.no_grad():
            close(OPS.gated_activation(torch.cat((x, x), dim=-1), activation), mlp.to(dtype)(x))  # type: ignore[arg-type]


def test_the_gate_comes_first() -> None:
    gate, up = torch.tensor([[-9.0, 2.0]]), torch.tensor([[5.0, 3.0]])
    expected = torch.nn.functional.silu(gate) * up
    torch.testing.assert_close(OPS.gated_activation(torch.cat((gate, up), dim=-1), "silu"), expected)
