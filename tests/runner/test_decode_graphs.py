import logging

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from jitney.runner.decode_graphs import DecodeGraphs, padded_sizes
from jitney.sampling_params import SamplingParams

from .fake_graphs import FakeGraphs, NotTheRecordedWorkError
from .plain_model import PlainModel

CPU = torch.device("cpu")
PADDING_SLOT = 77
V = 3


def echo_step(slots: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
    """Logits that say which row they are of."""
    return torch.stack((slots, positions, slots * positions), dim=1).float()


def rows_of(*pairs: tuple[int, int]) -> torch.Tensor:
    return torch.tensor(pairs, dtype=torch.int32).T.contiguous()


@pytest.mark.parametrize("most", [1, 2, 3, 4, 7, 8, 9, 64, 65, 100, 256, 300, 1024])
def test_there_is_a_size_for_every_number_of_rows_and_few_rows_are_wasted(most: int) -> None:
    sizes = padded_sizes(most)
    assert sizes == sorted(set(sizes)) and sizes[-1] == most and len(sizes) <= 60
    for num_rows in range(1, most + 1):
        size = next(size for size in sizes if size >= num_rows)
        assert size - num_rows < max(4 if num_rows > 4 else 2, 32 if num_rows > 256 else 16 if num_rows > 64 else 8)


@given(st.lists(st.integers(1, 11), min_size=1, max_size=12))
@settings(max_examples=50, deadline=None)
def test_replays_of_changing_numbers_of_rows_compute_the_rows_of_each_step(counts: list[int]) -> None:
    seen: list[torch.Tensor] = []

    def step(slots: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        seen.append(torch.stack((slots, positions)))
        return echo_step(slots, positions)

    graphs = DecodeGraphs(step, 11, V, PADDING_SLOT, CPU)
    graphs.capture(FakeGraphs())
    for number, count in enumerate(counts):
        rows = rows_of(*((i, 10 * number + i) for i in range(count)))
        logits = graphs.logits(rows)
        assert logits is not None
        assert torch.equal(logits, echo_step(*rows))
        padding = seen[-1][:, count:]
        assert padding[0].eq(PADDING_SLOT).all() and padding[1].eq(0).all()


def test_sizes_are_recorded_largest_first_and_those_that_fail_run_eagerly_after_one_warning(caplog) -> None:
    library = FakeGraphs(failing=[0, 2])
    graphs = DecodeGraphs(echo_step, 8, V, PADDING_SLOT, CPU)
    with caplog.at_level(logging.WARNING):
        graphs.capture(library)
    (record,) = caplog.records
    assert "8, 2 rows" in record.getMessage() and "not permitted" in record.getMessage()
    served = [graphs.logits(rows_of(*((i, i) for i in range(n)))) is not None for n in range(1, 10)]
    assert served == [True, False, True, True, False, False, False, False, False]


def test_the_fake_library_notices_numbers_of_the_host_that_change_and_memory_that_moves() -> None:
    state = {"number": 1, "tensor": torch.zeros(2)}
    by_number = FakeGraphs().capture(lambda: state["tensor"].add_(state["number"]))
    by_number.replay()
    state["number"] = 2
    with pytest.raises(NotTheRecordedWorkError):
        by_number.replay()
    by_address = FakeGraphs().capture(lambda: state["tensor"].add_(1))
    by_address.replay()
    state["kept"], state["tensor"] = state["tensor"], torch.zeros(2)
    with pytest.raises(NotTheRecordedWorkError):
        by_address.replay()


PARAMS = [
    SamplingParams(temperature=0),
    SamplingParams(),
    SamplingParams(top_p=0.8, logprobs=2),
    SamplingParams(top_k=5, frequency_penalty=1.0),
    SamplingParams(temperature=0, repetition_penalty=1.5, bad_token_ids=[3]),
]


@given(
    st.lists(
        st.tuples(st.lists(st.integers(0, 60), min_size=1, max_size=9), st.sampled_from(PARAMS)), min_size=5, max_size=5
    ),
    st.lists(st.integers(1, 31), min_size=20, max_size=20),
    st.sets(st.integers(0, 3)),
)
@settings(max_examples=25, deadline=None)
def test_graphs_and_eager_steps_give_the_same_tokens(make_driver, requests, choices, failing) -> None:
    library = FakeGraphs(failing)
    drivers = [make_driver(PlainModel(), 4, max_num_seqs=6) for _ in range(2)]
    drivers[0].runner.capture_decode_graphs(library, max_num_rows=5)
    results = []
    for driver in drivers:
        outputs = []
        left = {slot: len(prompt) for slot, (prompt, _) in enumerate(requests)}
        for slot, (prompt, params) in enumerate(requests):
            driver.admit(slot, prompt, params, seed=slot)
        for choice in choices:
            chosen = [slot for slot in left if choice & (1 << slot)]
            prefills = [(slot, min(left[slot], 3)) for slot in chosen if left[slot]]
            rows = [(slot, 1) for slot in chosen if not left[slot]] + prefills
            for slot, length in rows:
                left[slot] = max(0, left[slot] - length)
            outputs.append(driver.step(*rows))
        results.append((driver.outputs, [o.is_valid.all() for o in outputs], logprob_ids(outputs)))
    assert results[0] == results[1]
    assert len(library.graphs) == 4 - len(failing)


def logprob_ids(outputs: list) -> list:
    return [None if o.logprobs is None else o.logprobs.top_token_ids.tolist() for o in outputs]


def test_only_steps_of_decode_rows_replay_a_graph(make_driver) -> None:
    library = FakeGraphs()
    driver = make_driver(PlainModel(), 4)
    driver.runner.capture_decode_graphs(library, max_num_rows=4)
    driver.admit(0, [1, 2, 3])
    driver.admit(1, [4, 5])
    replays = []
    for rows in ([(0, 3)], [(0, 1)], [(0, 1), (1, 2)], [(1, 1), (0, 1)], [(1, 1)]):
        driver.step(*rows)
        replays.append(library.num_replays)
    assert replays == [0, 1, 1, 2, 3]


def test_padding_rows_touch_nothing_but_scratch(make_driver) -> None:
    driver = make_driver(PlainModel(), 4)
    driver.runner.capture_decode_graphs(FakeGraphs(), max_num_rows=4)
    for slot in range(3):
        driver.admit(slot, [slot + 1, 2, 3])
    cache = driver.runner._cache
    for tensor in (*cache.keys, *cache.values):
        tensor.zero_()  # what was never written may be NaN, and differ from itself
    driver.step(*((slot, 3) for slot in range(3)))
    before = [tensor.clone() for tensor in (*cache.keys, *cache.values)]
    driver.step((0, 1), (1, 1), (2, 1))
    for old, new in zip(before, (*cache.keys, *cache.values), strict=True):
        changed = (old != new).flatten(2).any(-1)
        assert changed[1:].sum() == 3, "one place for each row that is no padding"
    assert driver.runner._last_token[-1] == 0
