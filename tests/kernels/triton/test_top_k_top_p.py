"""Filtering by bisection, in the interpreter, against the reference that sorts."""

from typing import Any

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from jitney.kernels.triton import top_k_top_p
from jitney.kernels.triton.top_k_top_p import drop_mask
from jitney.runner.top_k_top_p import drop_mask as drop_mask_by_sorting


def check(logits: torch.Tensor, top_k: list[int], top_p: list[float]) -> torch.Tensor:
    probs, filters = logits.softmax(-1), (torch.tensor(top_k), torch.tensor(top_p, dtype=torch.float64))
    got = drop_mask(logits, probs, *filters)
    expected, can_be_drawn = drop_mask_by_sorting(logits, probs, *filters, logits.shape[-1]), logits > -torch.inf
    assert torch.equal(got & can_be_drawn, expected & can_be_drawn)  # what cannot be drawn may be dropped or not
    return got


def random(num_rows: int, vocab_size: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(num_rows, vocab_size, generator=torch.Generator().manual_seed(seed)) * 3


@pytest.mark.parametrize("vocab_size", [1, 61, 8192, 8193])
def test_it_drops_what_sorting_drops(vocab_size: int) -> None:
    check(random(6, vocab_size), [0, 5, 0, 40, 1, 0], [torch.inf, torch.inf, 0.9, 0.7, 0.5, 0.999])


@settings(max_examples=20, deadline=None)
@given(
    st.lists(st.sampled_from([-torch.inf, -9.0, -1.0, -0.0, 0.0, 0.5, 0.5000001, 2.0]), min_size=1, max_size=24),
    st.integers(0, 30),
    st.sampled_from([0.03, 0.3, 0.61, 0.9, torch.inf]),
)
@example([-torch.inf] * 3, 2, torch.inf)
def test_among_equals_at_the_border_the_lowest_ids_stay(values: list[float], top_k: int, top_p: float) -> None:
    if max(values) == -torch.inf:
        values[-1] = 0.0
    dropped = check(torch.tensor([values]), [min(top_k, len(values))], [top_p])
    assert not dropped.all()


def test_top_k_of_one_is_greedy_and_no_filter_drops_nothing() -> None:
    logits = torch.zeros(2, 50)
    dropped = check(logits, [1, 0], [torch.inf, torch.inf])
    assert dropped.tolist() == [[False] + [True] * 49, [False] * 50]


def test_a_row_is_filtered_alike_in_any_batch_and_rows_of_nan_spoil_no_other() -> None:
    logits = random(5, 300)
    logits[1] = torch.nan
    top_k, top_p = torch.tensor([0, 3, 7, 0, 100]), torch.tensor([0.9, 0.9, torch.inf, 0.5, 0.95], dtype=torch.float64)
    together = drop_mask(logits, logits.softmax(-1), top_k, top_p)
    for row in (0, 2, 3, 4):
        one = slice(row, row + 1)
        assert torch.equal(drop_mask(logits[one], logits[one].softmax(-1), top_k[one], top_p[one]), together[one])


def test_the_kernel_gets_aligned_rows_whatever_part_of_a_tensor_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    starts: list[int] = []

    class Kernel:
        def __getitem__(self, grid: Any) -> Any:
            return lambda dropped, logits, probs, *_, **__: starts.extend((logits.data_ptr(), probs.data_ptr()))

    monkeypatch.setattr(top_k_top_p, "_drop_mask_kernel", Kernel())
    logits = random(4, 61)
    for first in range(4):
        part = slice(first, 4)
        drop_mask(logits[part], logits.softmax(-1)[part], torch.ones(4)[part], torch.ones(4)[part])
    assert len(starts) == 8 and all(start % 16 == 0 for start in starts)


def test_no_rows() -> None:
    assert check(torch.empty(0, 9), [], []).shape == (0, 9)
