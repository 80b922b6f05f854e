"""Triton's small operations, in the interpreter, against the reference in torch. Shapes are small: it is slow."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from jitney.kernels.ops import Activation, TorchOps
from jitney.kernels.triton.ops import TritonOps

OPS, REFERENCE = TritonOps(), TorchOps()
DTYPES = [torch.float32, torch.bfloat16, torch.float16]


def random(*shape: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def close(got: torch.Tensor, expected: torch.Tensor, atol: float = 1e-6) -> None:
    """Equal but for the last digit: sums in another order tip it, and the interpreter cuts bfloat16 off."""
    assert got.dtype is expected.dtype and got.shape == expected.shape and got.is_contiguous()
    step = 2e-6 if got.dtype is torch.float32 else torch.finfo(got.dtype).eps
    torch.testing.assert_close(got, expected, rtol=step, atol=atol)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("size", "offset"), [(1, 0.0), (40, 1.0), (64, 0.0), (576, 0.0), (1500, 1.0)])
def test_rms_norm_of_any_size(size: int, offset: float, dtype: torch.dtype) -> None:
    x, weight = random(5, size, dtype=dtype) * 3, random(size, dtype=dtype, seed=1)
    close(OPS.rms_norm(x, weight, 1e-5, offset), REFERENCE.rms_norm(x, weight, 1e-5, offset))


@pytest.mark.parametrize("shape", [(8,), (3, 8), (3, 5, 8), (2, 3, 5, 8), (0, 8), (0, 5, 8)])
def test_rms_norm_takes_any_number_of_dimensions(shape: tuple[int, ...]) -> None:
    x, weight = random(*shape), random(8, seed=1)
    close(OPS.rms_norm(x, weight, 1e-5), REFERENCE.rms_norm(x, weight, 1e-5))


def test_rms_norm_of_heads_inside_a_merged_projection() -> None:
    query, key, _ = random(7, 12, 80).split((6, 3, 3), dim=1)
    weight = random(80, seed=1)
    for heads in (query, key, key[::2], query.transpose(0, 1), random(80, 6).T):
        own = weight[: heads.shape[-1]]
        close(OPS.rms_norm(heads, own, 1e-5), REFERENCE.rms_norm(heads, own, 1e-5))


@pytest.mark.parametrize("dtype", DTYPES)
def test_add_rms_norm_norms_the_rounded_sum_and_changes_no_input(dtype: torch.dtype) -> None:
    x, residual = random(6, 96, dtype=dtype), random(6, 192, dtype=dtype, seed=1)[:, ::2] * 100
    weight, inputs = random(96, dtype=dtype, seed=2), (x.clone(), residual.clone())
    normed, new_residual = OPS.add_rms_norm(x, residual, weight, 1e-6, 1.0)
    close(new_residual, x + residual, atol=0.0)
    close(normed, REFERENCE.rms_norm(new_residual, weight, 1e-6, 1.0))
    assert torch.equal(x, inputs[0]) and torch.equal(residual, inputs[1])


def test_a_row_is_normed_to_the_same_bits_in_any_batch() -> None:
    x, residual, weight = random(19, 100), random(19, 100, seed=1), random(100, seed=2)
    together = OPS.add_rms_norm(x, residual, weight, 1e-6)[0]
    for row in range(19):
        alone = OPS.add_rms_norm(x[row : row + 1], residual[row : row + 1], weight, 1e-6)[0]
        assert torch.equal(alone[0], together[row])


def test_a_row_with_nan_spoils_no_other() -> None:
    x = random(5, 64)
    x[2, 7] = torch.nan
    got = OPS.rms_norm(x, torch.ones(64), 1e-6)
    assert got.isnan().any(-1).tolist() == [False, False, True, False, False]


class Rotation:
    """One call of rope_and_write_kv: Q, K and V side by side as a merged projection leaves them, caches of garbage."""

    def __init__(
        self, num_tokens: int, num_heads: int, num_kv_heads: int, size: int, rotated: int,
        dtype: torch.dtype = torch.float32, block_size: int = 4, seed: int = 0,
    ) -> None:  # fmt: skip
        generator = torch.Generator().manual_seed(seed)
        heads = (num_heads, num_kv_heads, num_kv_heads)
        self.query, self.key, self.value = random(num_tokens, sum(heads), size, dtype=dtype).split(heads, dim=1)
        angles = torch.arange(40.0)[:, None] * torch.logspace(0, -3, rotated // 2)
        self.cos, self.sin = angles.cos(), angles.sin()
        self.positions = torch.randint(40, (num_tokens,), generator=generator)
        num_blocks = num_tokens // block_size + 2
        self.kv_index = torch.randperm(num_blocks * block_size, generator=generator)[:num_tokens]
        self.shape = (num_blocks, block_size, num_kv_heads, size)

    def run(self, ops: TritonOps | TorchOps) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        caches = torch.full((2, *self.shape), torch.nan, dtype=self.query.dtype)
        rotated = ops.rope_and_write_kv(
            self.query, self.key, self.value, self.cos, self.sin, self.positions, caches[0], caches[1], self.kv_index
        )
        return rotated, caches[0], caches[1]

    def check(self) -> None:
        for got, expected in zip(self.run(OPS), self.run(REFERENCE), strict=True):
            assert torch.equal(got.isnan(), expected.isnan()), "only the tokens' own places are written"
            close(got.nan_to_num(), expected.nan_to_num())


@pytest.mark.parametrize("size", [64, 80, 96, 128, 256])
@pytest.mark.parametrize("dtype", DTYPES)
def test_rope_of_every_head_size(size: int, dtype: torch.dtype) -> None:
    Rotation(3, 4, 2, size, size, dtype).check()


@pytest.mark.parametrize("rotated", [0, 2, 20, 32, 78, 80])
def test_rope_of_a_part_of_the_head_leaves_the_rest_as_it_is(rotated: int) -> None:
    Rotation(3, 3, 1, 80, rotated).check()


@settings(max_examples=15, deadline=None)
@given(st.integers(0, 9), st.integers(1, 3), st.integers(1, 10), st.sampled_from([1, 3, 16]), st.integers(0, 99))
def test_rope_of_any_number_of_tokens_and_heads(
    num_tokens: int, group: int, num_kv_heads: int, block_size: int, seed: int
) -> None:
    Rotation(num_tokens, group * num_kv_heads, num_kv_heads, 16, 16, block_size=block_size, seed=seed).check()


def test_rope_takes_normed_heads_and_tables_that_are_half_of_one() -> None:
    case = Rotation(5, 8, 2, 64, 64)
    case.query, case.key = case.query.contiguous(), case.key.contiguous()
    both = torch.cat((case.cos, case.sin), dim=-1)
    case.cos, case.sin = both.chunk(2, dim=-1)
    case.check()
    case.query = random(5, 64, 8).transpose(1, 2)
    case.check()


def test_padding_tokens_write_to_the_scratch_block_alone() -> None:
    case = Rotation(6, 2, 1, 16, 16)
    case.kv_index = torch.tensor([5, 9, 0, 0, 0, 0])
    case.positions[2:] = 0
    rotated, keys, values = case.run(OPS)
    written = [0, 5, 9]
    for cache in (keys, values):
        untouched = cache.flatten(0, 1).isnan().all(-1).all(-1)
        assert [i for i in range(len(untouched)) if not untouched[i]] == written
    close(rotated, case.run(REFERENCE)[0])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("activation", ["silu", "gelu_tanh"])
@pytest.mark.parametrize("size", [1, 37, 1024, 1500])
def test_gated_activation(activation: Activation, size: int, dtype: torch.dtype) -> None:
    gate_up = random(3, 2 * size, dtype=dtype) * 4
    # far below zero torch's 1 + tanh(x) has no digits left, where ours keeps them
    close(OPS.gated_activation(gate_up, activation), REFERENCE.gated_activation(gate_up, activation), atol=5e-6)


@pytest.mark.parametrize("activation", ["silu", "gelu_tanh"])
def test_gated_activation_of_large_gates_overflows_nowhere(activation: Activation) -> None:
    gate = torch.tensor([[-1e30, -1e4, -90.0, -1e-30, 0.0, 1e-30, 90.0, 1e4, 1e30]])
    got = OPS.gated_activation(torch.cat((gate, torch.ones_like(gate)), dim=-1), activation)
    torch.testing.assert_close(got, gate.clamp(min=0), atol=1e-30, rtol=1e-6)


def test_gated_activation_of_nothing_and_of_rows_that_stand_apart() -> None:
    assert OPS.gated_activation(torch.empty(0, 8), "silu").shape == (0, 4)
    for gate_up in (random(4, 50)[:, 3:43], random(40, 4).T, random(8, 40)[::3]):
        close(OPS.gated_activation(gate_up, "silu"), REFERENCE.gated_activation(gate_up, "silu"))
