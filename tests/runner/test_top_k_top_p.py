import math

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from jitney.runner.top_k_top_p import drop_mask, drop_mask_unseen


@given(st.integers(1, 60), st.data())
@settings(max_examples=60, deadline=None)
def test_how_many_candidates_are_looked_at_changes_nothing(num_candidates, data):
    coarse = st.sampled_from([-math.inf, -1.0, 0.0, 0.5, 1.0, 3.0])  # many ties
    values = data.draw(st.lists(coarse, min_size=60, max_size=60).filter(lambda v: max(v) > -math.inf))
    logits = torch.tensor([values])
    top_k, top_p = data.draw(st.integers(0, 59)), data.draw(st.sampled_from([0.01, 0.3, 0.9, 0.999, math.inf]))
    args = logits, logits.softmax(-1), torch.tensor([top_k]), torch.tensor([top_p], dtype=torch.float64)
    kept = ~drop_mask(*args, num_candidates=num_candidates)
    assert torch.equal(kept & (args[1] > 0), ~drop_mask(*args, num_candidates=60) & (args[1] > 0))
    kept &= args[1] > 0  # what has no probability is never drawn, dropped or not
    assert 1 <= kept.sum() <= (top_k or 60)
    assert logits[kept].min() >= logits[~kept].max() if not kept.all() else True
    mass = args[1][kept].double().sum() / args[1].sort(descending=True).values[0, : top_k or 60].double().sum()
    assert mass >= min(top_p, 1.0) - 1e-6 or kept.sum() == min(top_k or 60, (args[1] > 0).sum())


def test_a_flat_row_next_to_a_peaked_one_keeps_its_whole_nucleus():
    logits = torch.zeros(2, 4000)
    logits[1, 7] = 50.0
    top_p = torch.tensor([0.75, 0.75], dtype=torch.float64)
    kept = ~drop_mask(logits, logits.softmax(-1), torch.zeros(2, dtype=torch.int64), top_p, num_candidates=64)
    assert kept[0].nonzero().squeeze(-1).tolist() == list(range(3000))
    assert kept[1].nonzero().squeeze(-1).tolist() == [7]


@given(
    st.lists(st.tuples(st.integers(1, 39), st.sampled_from([0.01, 0.5, 0.95, math.inf])), min_size=1, max_size=4),
    st.data(),
)
@settings(max_examples=60, deadline=None)
def test_without_a_look_at_the_tensors_the_same_tokens_are_dropped(filters, data):
    coarse = st.sampled_from([-math.inf, -1.0, 0.0, 0.5, 1.0, 3.0])
    row = st.lists(coarse, min_size=40, max_size=40).filter(lambda v: max(v) > -math.inf)
    logits = torch.tensor([data.draw(row) for _ in filters])
    top_k, top_p = torch.tensor([k for k, _ in filters]), torch.tensor([p for _, p in filters], dtype=torch.float64)
    enough = int(top_k.max()) + 1
    if data.draw(st.booleans()):
        top_k[0], enough = 0, 40
    args = logits, logits.softmax(-1), top_k, top_p
    assert torch.equal(drop_mask_unseen(*args, enough), drop_mask(*args, num_candidates=5))
