import sys

import numpy as np
import pytest
import torch

from jitney.runner.sampling_ops import (
    GPU_MAX_LOGITS,
    HostSamplingOps,
    UnseenSamplingOps,
    choose_sampling_ops,
    enough_candidates,
)

TOP_K = np.array([0, 5, 40, 1, 0, 7], np.int32)
TOP_P = [torch.inf, torch.inf, 0.7, 0.5, 0.9, 0.3]


def logits(num_rows: int) -> torch.Tensor:
    return (torch.randn(num_rows, 300, generator=torch.Generator().manual_seed(1)) * 4).round()  # with ties


@pytest.mark.parametrize("rows", [slice(None), slice(1, 4), [1], [0]])
def test_a_host_that_must_not_look_drops_the_same_tokens(rows: slice | list[int]) -> None:
    top_k, values = TOP_K[rows], logits(len(TOP_K))[rows]
    args = values, values.softmax(-1), torch.from_numpy(top_k).long(), torch.tensor(TOP_P, dtype=torch.float64)[rows]
    assert torch.equal(UnseenSamplingOps().drop_mask(*args, top_k), HostSamplingOps().drop_mask(*args, top_k))


@pytest.mark.parametrize("ops", [HostSamplingOps(), UnseenSamplingOps()])
def test_greedy_rows_know_whether_they_are_valid(ops: HostSamplingOps | UnseenSamplingOps) -> None:
    values = torch.tensor([[1.0, 2, 2], [1, torch.nan, 0], [0, torch.inf, 0], [-torch.inf] * 3, [-torch.inf, 3, 0]])
    token_ids, is_valid = ops.most_likely(values)
    assert is_valid.tolist() == [True, False, False, False, True]
    assert token_ids[is_valid].tolist() == [1, 1]
    assert token_ids.max() < 3


def test_candidates_are_bounded_only_where_every_row_has_a_small_top_k() -> None:
    assert enough_candidates(np.array([3, 9], np.int32)) == 10
    assert enough_candidates(np.array([3, 0], np.int32)) is None
    assert enough_candidates(np.array([3, 1024], np.int32)) is None


def test_a_cpu_looks_and_others_do_not() -> None:
    assert isinstance(choose_sampling_ops(torch.device("cpu")), HostSamplingOps)
    assert isinstance(choose_sampling_ops(torch.device("meta")), UnseenSamplingOps)


def test_a_gpu_without_triton_never_looks_either_and_says_what_it_costs(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    for module in ("jitney.kernels.triton", "jitney.kernels.triton.greedy", "jitney.kernels.triton.top_k_top_p"):
        monkeypatch.setitem(sys.modules, module, None)
    ops = choose_sampling_ops(torch.device("cuda"))
    assert isinstance(ops, UnseenSamplingOps)
    assert ops.max_logits == GPU_MAX_LOGITS
    assert "Triton cannot be imported" in caplog.text
