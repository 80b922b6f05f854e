import torch

from jitney.runner import logprobs


def test_many_rows_are_worked_through_in_parts_without_a_seam(monkeypatch):
    logits = torch.randn(11, 20, generator=torch.Generator().manual_seed(0))
    token_ids = torch.arange(11)
    whole = logprobs.logprobs_of(logits, token_ids, 3).to_host()
    monkeypatch.setattr(logprobs, "_MAX_ELEMENTS", 80)
    parts = logprobs.logprobs_of(logits, token_ids, 3).to_host()
    for name in ("token_ids", "logprobs", "ranks", "top_token_ids", "top_logprobs"):
        assert getattr(parts, name).tolist() == getattr(whole, name).tolist()


def test_no_rows_give_empty_arrays_of_the_right_shape():
    rows = logprobs.logprobs_of(torch.empty(0, 20), torch.empty(0, dtype=torch.int64), 3).to_host()
    assert rows.logprobs.shape == (0,) and rows.top_logprobs.shape == (0, 3)


def test_equally_likely_tokens_share_a_rank():
    rows = logprobs.logprobs_of(torch.tensor([[1.0, 3.0, 3.0, 2.0]] * 3), torch.tensor([1, 2, 3]), 0).to_host()
    assert rows.ranks.tolist() == [1, 1, 3]
