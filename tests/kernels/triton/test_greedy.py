import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from jitney.kernels.triton.greedy import most_likely


def check(logits: torch.Tensor) -> None:
    token_ids, is_valid = most_likely(logits)
    assert token_ids.dtype is torch.int64 and is_valid.dtype is torch.bool
    assert is_valid.tolist() == logits.amax(-1).isfinite().tolist()
    assert token_ids[is_valid].tolist() == logits.argmax(-1)[is_valid].tolist()
    assert all(0 <= token < logits.shape[-1] for token in token_ids.tolist())


@pytest.mark.parametrize("vocab_size", [1, 61, 4096, 4097, 50257])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_the_largest_logit_of_any_vocabulary(vocab_size: int, dtype: torch.dtype) -> None:
    check(torch.randn(3, vocab_size, generator=torch.Generator().manual_seed(vocab_size)).to(dtype))


def test_the_lowest_id_wins_among_equals_within_and_across_splits() -> None:
    logits = torch.zeros(4, 10000)
    for row, ids in enumerate([(77, 78), (5000, 9000), (4095, 4096), (0, 9999)]):
        logits[row, list(ids)] = 2.0
    assert most_likely(logits)[0].tolist() == [77, 5000, 4095, 0]
    assert most_likely(torch.full((1, 9000), -3.0))[0].tolist() == [0]


@settings(max_examples=30, deadline=None)
@given(st.lists(st.sampled_from([0.0, -1.5, 1.5, 3e38, -torch.inf, torch.inf, torch.nan]), min_size=1, max_size=9))
def test_rows_without_a_finite_largest_logit_are_marked(values: list[float]) -> None:
    check(torch.tensor([values, [0.0] * len(values)]))


def test_a_row_of_nothing_but_forbidden_tokens_is_marked() -> None:
    check(torch.full((2, 5000), -torch.inf))


def test_no_rows_and_rows_that_stand_apart() -> None:
    assert [result.shape for result in most_likely(torch.empty(0, 9))] == [(0,), (0,)]
    check(torch.randn(6, 50)[::2, 3:40])
    check(torch.randn(50, 6).T)
