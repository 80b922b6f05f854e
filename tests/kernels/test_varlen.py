"""The arguments handed to torch's varlen_attn, checked by an emulation of its documented meaning."""

import pytest
import torch

from jitney.kernels.varlen import VarlenAttention

from .paged_case import SCALE, Case, dense, make_case


def emulated_varlen_attn(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    cu_seq_q: torch.Tensor,
    cu_seq_k: torch.Tensor | None,
    max_q: int,
    max_k: int,
    *,
    return_aux: None = None,
    scale: float | None = None,
    window_size: tuple[int, int] = (-1, -1),
    enable_gqa: bool = False,
    seqused_k: torch.Tensor | None = None,
    block_table: torch.Tensor | None = None,
    num_splits: int | None = None,
) -> torch.Tensor:
    """torch 2.13's `torch.nn.attention.varlen.varlen_attn` with a paged KV cache, by its docstring and its checks.

    Sequence i's queries are aligned with the end of its first seqused_k[i] keys; a query sees the keys from
    window_size[0] before its own place to window_size[1] behind it, -1 meaning no limit.
    """
    assert seqused_k is not None and block_table is not None and scale is not None
    assert {cu_seq_q.dtype, seqused_k.dtype, block_table.dtype} == {torch.int32}
    assert block_table.shape[0] == len(seqused_k) == len(cu_seq_q) - 1
    assert enable_gqa or query.shape[1] == key.shape[2]
    if cu_seq_k is not None:
        assert cu_seq_k.dtype is torch.int32
        assert torch.equal(cu_seq_k.diff(), seqused_k) and cu_seq_k[0] == 0
    outputs = torch.full(query.shape, float("nan"), dtype=query.dtype)
    group = query.shape[1] // key.shape[2]
    for i, used in enumerate(seqused_k.tolist()):
        first, last = cu_seq_q[i : i + 2].tolist()
        assert last - first <= max_q and used <= max_k
        pages = block_table[i, : -(-used // key.shape[1])].long()
        keys, values = (
            pool[pages].flatten(0, 1)[:used].double().repeat_interleave(group, dim=1) for pool in (key, value)
        )
        scores = torch.einsum("qhd,khd->hqk", query[first:last].double(), keys) * scale
        distance = torch.arange(used) - torch.arange(used - (last - first), used)[:, None]
        left, right = window_size
        hidden = (distance > right if right >= 0 else distance > used) | (distance < -left if left >= 0 else False)
        weights = scores.masked_fill(hidden, float("-inf")).softmax(-1)
        outputs[first:last] = torch.einsum("hqk,khd->qhd", weights, values).to(query.dtype)
    return outputs


def run(case: Case, takes_key_starts: bool = False, window: int | None = None) -> torch.Tensor:
    case.write()
    step = VarlenAttention(emulated_varlen_attn, takes_key_starts).begin(case.batch, case.key_cache.shape[1])
    return step.attend(case.query, case.key_cache, case.value_cache, SCALE, sliding_window=window)


ROWS = [(300, 1), (0, 21), (45, 19), (6, 1)]


@pytest.mark.parametrize("heads", [(2, 2), (6, 2)])
@pytest.mark.parametrize("window", [None, 1, 17, 301, 400])
@pytest.mark.parametrize("takes_key_starts", [False, True])
def test_equals_dense_attention(heads: tuple[int, int], window: int | None, takes_key_starts: bool) -> None:
    case = make_case(ROWS, 16, *heads)
    torch.testing.assert_close(run(case, takes_key_starts, window), dense(case, window), rtol=1e-4, atol=1e-5)


def test_keys_are_never_split_because_that_would_depend_on_the_batch() -> None:
    given: list[object] = []

    def note(*args: object, num_splits: int | None = None, **options: object) -> torch.Tensor:
        given.append(num_splits)
        return torch.empty(0)

    case = make_case(ROWS, 16)
    VarlenAttention(note, False).begin(case.batch, 16).attend(case.query, case.key_cache, case.value_cache, SCALE)
    assert given == [1]


def test_installed_torch_takes_these_arguments() -> None:
    import inspect

    from torch.nn.attention.varlen import varlen_attn

    ours = inspect.signature(emulated_varlen_attn).parameters
    theirs = inspect.signature(varlen_attn).parameters
    if "block_table" in theirs:  # torch 2.11 knows none, and then this backend is not chosen
        assert list(theirs) == list(ours)


def test_an_empty_step_calls_nothing() -> None:
    case = make_case([(7, 0)], 16)
    assert run(case).shape == (0, 4, 8)


@pytest.mark.parametrize("option", [{"softcap": 3.0}, {"sinks": torch.zeros(4)}])
def test_what_it_cannot_do_is_refused(option: dict[str, object]) -> None:
    case = make_case(ROWS, 16)
    step = VarlenAttention(emulated_varlen_attn, False).begin(case.batch, 16)
    with pytest.raises(ValueError, match="Triton"):
        step.attend(case.query, case.key_cache, case.value_cache, SCALE, **option)  # type: ignore[arg-type]
