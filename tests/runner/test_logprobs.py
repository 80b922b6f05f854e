import torch

from jitney.runner import logprobs
from jitney.types import LogprobRows


def rows_of(logits: torch.Tensor, token_ids: torch.Tensor, num_top: int) -> LogprobRows:
    found = logprobs.logprobs_of(logits, token_ids, num_top)
    return found.assemble(iter([tensor.numpy() for tensor in found.tensors()]))


def test_many_rows_are_worked_through_in_parts_without_a_seam(monkeypatch):
    logits = torch.randn(11, 20, generator=torch.Generator().manual_seed(0))
    token_ids = torch.arange(11)
    whole = rows_of(logits, token_ids, 3)
    monkeypatch.setattr(logprobs, "_MAX_ELEMENTS", 80)
    parts = rows_of(logits, token_ids, 3)
    for name in ("token_ids", "logprobs", "ranks", "top_token_ids", "top_logprobs"):
        assert getattr(parts, name).tolist() == getattr(whole, name).tolist()


def test_no_rows_give_empty_arrays_of_the_right_shape():
    rows = rows_of(torch.empty(0, 20), torch.empty(0, dtype=torch.int64), 3)
    assert rows.logprobs.shape == (0,) and rows.top_logprobs.shape == (0, 3)


def test_equally_likely_tokens_share_a_rank():
    rows = rows_of(torch.tensor([[1.0, 3.0, 3.0, 2.0]] * 3), torch.tensor([1, 2, 3]), 0)
    assert rows.ranks.tolist() == [1, 1, 3]
