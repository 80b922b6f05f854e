"""Which backend is taken for which model and machine; and the reference backend's steps."""

from dataclasses import replace

import pytest
import torch

from jitney.kernels.attention import AttentionCase, Installed, TorchAttention, attention_order, choose_attention

from .paged_case import SCALE, dense, make_case

LLAMA = AttentionCase(on_cuda=True, dtype=torch.bfloat16, head_dims=frozenset({128}), block_size=16)
ALL = Installed(flashinfer=True, varlen=True, flash_impl="FA3", triton=True)
FA2 = replace(ALL, flashinfer=False, flash_impl=None)


def test_the_order_is_flashinfer_varlen_triton_torch() -> None:
    assert attention_order(LLAMA, ALL) == ["flashinfer", "varlen", "triton", "torch"]


def test_what_is_not_installed_is_not_taken() -> None:
    assert attention_order(LLAMA, Installed(False, False, None, True)) == ["triton", "torch"]
    assert attention_order(LLAMA, Installed(False, False, None, False)) == ["torch"]


def test_a_cpu_has_the_reference_only() -> None:
    assert attention_order(replace(LLAMA, on_cuda=False), ALL) == ["torch"]


@pytest.mark.parametrize("change", [{"dtype": torch.float32}, {"has_sinks": True}])
def test_only_triton_and_torch_do_float32_and_sinks(change: dict[str, object]) -> None:
    assert attention_order(replace(LLAMA, **change), ALL) == ["triton", "torch"]  # type: ignore[arg-type]


def test_varlen_has_no_softcap() -> None:
    assert attention_order(replace(LLAMA, has_softcap=True), ALL) == ["flashinfer", "triton", "torch"]


def test_windows_are_served_by_all() -> None:
    assert attention_order(replace(LLAMA, has_window=True), ALL) == attention_order(LLAMA, ALL)


@pytest.mark.parametrize(("block_size", "flash_impl", "serves"), [
    (16, None, False), (128, None, False), (256, None, True), (512, "FA2", True),
    (16, "FA3", True), (48, "FA3", True), (8, "FA3", False), (256, "FA4", False),
])  # fmt: skip
def test_flash_attention_limits_the_block_size(block_size: int, flash_impl: str | None, serves: bool) -> None:
    case = replace(LLAMA, block_size=block_size)
    assert ("varlen" in attention_order(case, replace(ALL, flash_impl=flash_impl))) is serves


@pytest.mark.parametrize(
    ("head_dim", "order"),
    [
        (64, ["flashinfer", "varlen", "triton", "torch"]),
        (80, ["varlen", "triton", "torch"]),
        (100, ["triton", "torch"]),
        (256, ["flashinfer", "varlen", "triton", "torch"]),
        (512, ["triton", "torch"]),
    ],
)
def test_head_sizes_decide(head_dim: int, order: list[str]) -> None:
    assert attention_order(replace(LLAMA, head_dims=frozenset({head_dim})), ALL) == order
    assert attention_order(replace(LLAMA, head_dims=frozenset({128, head_dim})), ALL) == order


def test_a_cpu_has_the_reference() -> None:
    backend = choose_attention(
        torch.device("cpu"), torch.float32, [64], 16, has_softcap=False, has_sinks=False, has_window=True
    )
    assert backend.name == "torch" and not backend.supports_graphs


def test_one_reference_step_serves_layers_with_different_windows() -> None:
    case = make_case([(300, 1), (0, 21), (45, 19)], 16)
    case.write()
    step = TorchAttention().begin(case.batch, 16)
    sinks = torch.linspace(-2, 2, 4)
    for window in (None, 7, None, 7):
        got = step.attend(
            case.query, case.key_cache, case.value_cache, SCALE, sliding_window=window, softcap=20.0, sinks=sinks
        )
        torch.testing.assert_close(got, dense(case, window, 20.0, sinks), rtol=1e-4, atol=1e-5)
