"""Each feature against transformers' logits processors, draws against chi-square, rows against each other."""

import math
from collections.abc import Sequence

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers.generation.logits_process import (
    LogitsProcessor,
    MinPLogitsWarper,
    RepetitionPenaltyLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from jitney.runner import top_k_top_p
from jitney.runner.random_numbers import uniform
from jitney.runner.random_stream import stream_start
from jitney.runner.sampler import SampledTokens, SampleRows, _probabilities, sample
from jitney.runner.sampling_state import SamplingState
from jitney.sampling_params import SamplingParams
from jitney.types import LogprobRows, SlotAdmission

CPU = torch.device("cpu")
GREEDY = SamplingParams(temperature=0)


def admission(slot, params, seed=0, prompt=(), output=(), stop=()):
    return SlotAdmission(slot, params, seed, stop, np.array(prompt, np.int32), np.array(output, np.int32))


def random_logits(num_rows: int, vocab_size: int, seed: int = 0, scale: float = 3.0) -> torch.Tensor:
    return torch.randn(num_rows, vocab_size, generator=torch.Generator().manual_seed(seed)) * scale


def sample_rows(
    logits: torch.Tensor, admissions: Sequence[SlotAdmission], positions: Sequence[int] | None = None
) -> SampledTokens:
    """Row i is the i-th admission; slots are taken as they are."""
    state = SamplingState(1 + max(a.slot for a in admissions), logits.shape[1], CPU)
    for a in admissions:
        state.admit(a)
    slots = np.array([a.slot for a in admissions], np.int32)
    if positions is None:
        positions = [len(a.prompt_token_ids) + len(a.output_token_ids) for a in admissions]
    where = np.array(positions, np.int32)
    rows = SampleRows(torch.from_numpy(slots).long(), torch.from_numpy(where).long(), slots, where)
    with torch.inference_mode():
        return sample(logits.clone(), rows, state)


def logprobs_of(result: SampledTokens) -> LogprobRows:
    return result.logprobs.assemble(iter([tensor.numpy() for tensor in result.logprobs.tensors()]))


def draws(logits: torch.Tensor, params: SamplingParams, count: int, **kwargs: Sequence[int]) -> torch.Tensor:
    """`count` tokens drawn from one row of logits, by as many slots with seeds 0, 1, ..."""
    admissions = [admission(i, params, seed=i, **kwargs) for i in range(count)]
    return sample_rows(logits.expand(count, -1), admissions).token_ids


def inverse_cdf(probs: torch.Tensor, seed: int, position: int) -> int:
    """The token that belongs to the row's random number, by a plain loop."""
    number = uniform(torch.tensor([stream_start(seed)]), torch.tensor([position])).item()
    weights = probs.double().tolist()
    target, total = number * math.fsum(weights), 0.0
    for token, weight in enumerate(weights):
        total += weight
        if total > target:
            return token
    raise AssertionError


def test_greedy_rows_take_the_first_of_the_most_likely_tokens():
    logits = torch.tensor([[0.0, 2.0, 2.0], [5.0, 1.0, 1.0]])
    result = sample_rows(logits, [admission(0, GREEDY), admission(1, GREEDY)])
    assert result.token_ids.tolist() == [1, 0]
    assert result.is_valid.tolist() == [True, True]
    assert result.logprobs is None


WARPED = [
    (SamplingParams(temperature=0.6), []),
    (SamplingParams(top_k=7), [TopKLogitsWarper(7)]),
    (SamplingParams(top_k=1), [TopKLogitsWarper(1)]),
    (SamplingParams(top_k=10**6), []),
    (SamplingParams(top_k=-1), []),
    (SamplingParams(top_p=0.7), [TopPLogitsWarper(0.7)]),
    (SamplingParams(top_p=1e-9), [TopPLogitsWarper(1e-9)]),
    (SamplingParams(min_p=0.05), [MinPLogitsWarper(0.05)]),
    (SamplingParams(min_p=1.0), [TopKLogitsWarper(1)]),
    (SamplingParams(temperature=1.4, top_k=40, top_p=0.9), [TopKLogitsWarper(40), TopPLogitsWarper(0.9)]),
    (
        SamplingParams(temperature=2.0, min_p=0.02, top_k=30, top_p=0.8),
        [MinPLogitsWarper(0.02), TopKLogitsWarper(30), TopPLogitsWarper(0.8)],
    ),
]


@pytest.mark.parametrize(("params", "warpers"), WARPED, ids=str)
@pytest.mark.parametrize("vocab_size", [211, 3001])
def test_filters_leave_the_distribution_that_transformers_leaves(params, warpers, vocab_size):
    logits = random_logits(40, vocab_size, scale=2.0)
    expected = TemperatureLogitsWarper(params.temperature)(None, logits)
    for warper in warpers:
        expected = warper(None, expected)
    expected = expected.softmax(-1)
    tokens = sample_rows(logits, [admission(i, params, seed=i) for i in range(40)]).token_ids.tolist()
    assert tokens == [inverse_cdf(expected[i], seed=i, position=0) for i in range(40)]


def test_rows_with_different_parameters_share_a_batch_without_mixing():
    logits = random_logits(1, 500)
    all_params = [params for params, _ in WARPED] + [GREEDY, SamplingParams(frequency_penalty=1.0, logprobs=3)]
    admissions = [admission(i, params, seed=1, prompt=[1, 2]) for i, params in enumerate(all_params)]
    together = sample_rows(logits.expand(len(all_params), -1), admissions).token_ids.tolist()
    assert together == [sample_rows(logits, [a]).token_ids.item() for a in admissions]


def test_a_nucleus_wider_than_the_candidates_is_found_by_sorting():
    logits = random_logits(6, 5000, scale=0.3)
    params = [SamplingParams(top_p=0.9), SamplingParams(top_k=3000), SamplingParams(top_k=2000, top_p=0.9)] * 2
    expected = logits.clone()
    for i, p in enumerate(params):
        for warper in ([TopKLogitsWarper(p.top_k)] if p.top_k else []) + [TopPLogitsWarper(p.top_p)]:
            expected[i] = warper(None, expected[i : i + 1])
    tokens = sample_rows(logits, [admission(i, p, seed=i) for i, p in enumerate(params)]).token_ids
    assert (expected > -torch.inf).sum(-1).min() > top_k_top_p.MAX_CANDIDATES
    assert tokens.tolist() == [inverse_cdf(expected[i].softmax(-1), i, 0) for i in range(6)]


def test_equal_logits_at_the_border_keep_the_lowest_ids():
    logits = torch.tensor([[0.0, 1.0, 1.0, 1.0]])
    assert set(draws(logits, SamplingParams(top_k=1), 50).tolist()) == {1}
    assert set(draws(logits, SamplingParams(top_k=2), 200).tolist()) == {1, 2}
    assert set(draws(logits, SamplingParams(top_p=0.35), 200).tolist()) == {1, 2}


def test_no_temperature_is_too_small_or_too_large():
    logits = random_logits(1, 100) * 1e4
    assert set(draws(logits, SamplingParams(temperature=1e-300), 20).tolist()) == {int(logits.argmax())}
    assert len(set(draws(logits / 1e4, SamplingParams(temperature=100.0), 300).tolist())) > 80


def chi_square(tokens: torch.Tensor, probs: torch.Tensor) -> tuple[float, int]:
    """(statistic, degrees of freedom), tokens expected fewer than 5 times taken together."""
    expected, observed = probs.double() * len(tokens), torch.bincount(tokens, minlength=len(probs)).double()
    rare = expected < 5
    expected = torch.cat((expected[~rare], expected[rare].sum()[None].clamp(min=1e-9)))
    observed = torch.cat((observed[~rare], observed[rare].sum()[None]))
    return float(((observed - expected) ** 2 / expected).sum()), len(expected) - 1


@pytest.mark.parametrize("by", ["seed", "position"])
@pytest.mark.parametrize(
    ("params", "probs"),
    [
        (SamplingParams(), lambda x: x.softmax(-1)),
        (SamplingParams(temperature=0.7), lambda x: (x / 0.7).softmax(-1)),
        (SamplingParams(top_k=12), lambda x: TopKLogitsWarper(12)(None, x).softmax(-1)),
        (SamplingParams(top_p=0.8), lambda x: TopPLogitsWarper(0.8)(None, x).softmax(-1)),
    ],
    ids=["plain", "temperature", "top_k", "top_p"],
)
def test_draws_follow_the_distribution(params, probs, by):
    logits, count = random_logits(1, 80, scale=1.5), 20_000
    if by == "seed":
        tokens = draws(logits, params, count)
    else:
        same_slot = [admission(0, params, seed=5)] * count
        tokens = sample_rows(logits.expand(count, -1), same_slot, range(count)).token_ids
    statistic, degrees = chi_square(tokens, probs(logits)[0])
    assert statistic < degrees + 4 * math.sqrt(2 * degrees) + 6


@given(st.integers(2, 12), st.integers(0, 2**63 - 1), st.sampled_from([33, 1021, 4099]), st.data())
@settings(max_examples=30, deadline=None)
def test_a_seeded_rows_token_does_not_depend_on_its_batch(num_rows, seed, vocab_size, data):
    kinds = st.sampled_from([params for params, _ in WARPED] + [GREEDY, SamplingParams(presence_penalty=1.0)])
    admissions = [
        admission(slot, data.draw(kinds), seed=seed ^ slot, prompt=range(slot))
        for slot in data.draw(st.permutations(range(num_rows)))
    ]
    logits = random_logits(num_rows, vocab_size, seed=seed % 2**32, scale=1.0)
    together = sample_rows(logits, admissions).token_ids.tolist()
    assert together == [sample_rows(logits[i : i + 1], [a]).token_ids.item() for i, a in enumerate(admissions)]


@pytest.mark.parametrize("num_threads", [1, 2])
def test_probabilities_are_the_same_bits_alone_and_in_a_batch(num_threads):
    before = torch.get_num_threads()
    torch.set_num_threads(num_threads)
    try:
        for vocab_size in (1, 7, 1023, 49153):
            state = SamplingState(9, vocab_size, CPU)
            for slot in range(9):
                state.admit(admission(slot, SamplingParams(temperature=0.3 + slot / 7, top_p=0.99, min_p=1e-6)))
            logits, slots = random_logits(9, vocab_size), np.arange(9)
            together = _probabilities(logits, torch.from_numpy(slots), slots, state)
            for i in range(9):
                alone = _probabilities(logits[i : i + 1], torch.tensor([i]), slots[i : i + 1], state)
                assert torch.equal(alone[0], together[i])
                assert torch.equal(alone.cumsum(-1, dtype=torch.float64)[0], together.double().cumsum(-1)[i])
    finally:
        torch.set_num_threads(before)


class OutputPenalties(LogitsProcessor):
    """Presence and frequency penalties as OpenAI's reference defines them (transformers has none)."""

    def __init__(self, presence: float, frequency: float) -> None:
        self.presence, self.frequency = presence, frequency

    def __call__(self, output: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        scores = scores.clone()
        for token in set(output[0].tolist()):
            count = output[0].tolist().count(token)
            scores[0, token] -= count * self.frequency + self.presence
        return scores


@pytest.mark.parametrize("penalty", [1.0, 0.5, 1.3, 4.0])
@pytest.mark.parametrize(("presence", "frequency"), [(0.0, 0.0), (1.5, 0.0), (0.0, 0.8), (-1.0, -0.5)])
def test_penalties_equal_transformers_and_openais_definition(penalty, presence, frequency):
    prompt, output = [1, 2, 2, 3, 19], [2, 4, 4, 4, 5]
    params = SamplingParams(
        temperature=1.0, repetition_penalty=penalty, presence_penalty=presence, frequency_penalty=frequency
    )
    logits = random_logits(30, 20)
    tokens = sample_rows(
        logits, [admission(i, params, seed=i, prompt=prompt, output=output) for i in range(30)]
    ).token_ids.tolist()
    for i, token in enumerate(tokens):
        expected = RepetitionPenaltyLogitsProcessor(penalty)(torch.tensor([prompt + output]), logits[i : i + 1])
        expected = OutputPenalties(presence, frequency)(torch.tensor([output]), expected)
        assert token == inverse_cdf(expected[0].softmax(-1), i, len(prompt) + len(output))


def test_a_sampled_token_counts_in_the_very_next_step():
    state = SamplingState(2, 3, CPU)
    state.admit(admission(1, SamplingParams(temperature=0, frequency_penalty=1.0)))
    tokens = []
    for position in range(5):
        slots, positions = np.array([1]), np.array([position])
        rows = SampleRows(torch.from_numpy(slots), torch.from_numpy(positions), slots, positions)
        tokens.append(sample(torch.tensor([[2.5, 0.0, 1.9]]), rows, state).token_ids.item())
    assert tokens == [0, 2, 0, 2, 0]


def test_token_rules_forbid_favour_and_ignore_ids_outside_the_vocabulary():
    logits = torch.tensor([[5.0, 4.0, 3.0, 2.0, 1.0]])

    def choice(stop: tuple[int, ...] = (), **rules: object) -> int:
        a = admission(0, SamplingParams(temperature=0, **rules), prompt=[0], stop=stop)
        return sample_rows(logits, [a]).token_ids.item()

    assert choice(bad_token_ids=[0, 99]) == 1
    assert choice(allowed_token_ids=[4, 3, 99]) == 3
    assert choice(allowed_token_ids=[4, 3], bad_token_ids=[3]) == 4
    assert choice(allowed_token_ids=[4, 3], logit_bias={4: 3.0, 1: 100.0}) == 4
    assert choice(logit_bias={2: 2.5, 99: 100.0}) == 2
    assert choice(logit_bias={0: -1.5}) == 1
    assert choice(min_tokens=1, stop=(0, 1, 99)) == 2
    assert choice(stop=(0, 1)) == 0


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_row_without_any_token_left_is_invalid(temperature):
    logits = random_logits(2, 10)
    none_left = SamplingParams(temperature=temperature, allowed_token_ids=[3], bad_token_ids=[3])
    result = sample_rows(logits, [admission(0, none_left), admission(1, GREEDY)])
    assert result.is_valid.tolist() == [False, True]
    assert 0 <= result.token_ids[0] < 10


@pytest.mark.parametrize("poison", [math.nan, math.inf])
@pytest.mark.parametrize(
    "params", [GREEDY, *(params for params, _ in WARPED), SamplingParams(bad_token_ids=[4])], ids=str
)
def test_a_row_with_nan_or_infinity_is_invalid_and_alone_affected(poison, params):
    logits = random_logits(3, 2000)
    clean = sample_rows(logits, [admission(i, params, seed=i) for i in range(3)])
    logits[1, 4] = poison
    result = sample_rows(logits, [admission(i, params, seed=i) for i in range(3)])
    assert clean.is_valid.all()
    assert result.is_valid.tolist() == [True, False, True]
    assert result.token_ids[[0, 2]].tolist() == clean.token_ids[[0, 2]].tolist()
    assert 0 <= result.token_ids[1] < 2000


def test_logprobs_are_those_of_the_raw_distribution_whatever_is_done_to_it():
    logits = random_logits(4, 50)
    changed = SamplingParams(temperature=0.5, top_k=5, frequency_penalty=2.0, logit_bias={7: 50.0}, logprobs=4)
    admissions = [
        admission(0, GREEDY),
        admission(1, changed, output=[1, 1, 2]),
        admission(2, SamplingParams(temperature=0, logprobs=0)),
        admission(3, SamplingParams()),
    ]
    result = sample_rows(logits, admissions)
    assert result.logprob_rows.tolist() == [1, 2]
    rows, tokens = logprobs_of(result), result.token_ids[[1, 2]]
    expected = logits[[1, 2]].log_softmax(-1)
    assert rows.token_ids.tolist() == tokens.tolist() and tokens[0] == 7
    np.testing.assert_allclose(rows.logprobs, expected.gather(-1, tokens[:, None])[:, 0], rtol=1e-6)
    order = expected.argsort(-1, descending=True)
    assert rows.ranks.tolist() == [order[i].tolist().index(int(tokens[i])) + 1 for i in range(2)]
    assert rows.ranks[0] > 1 and rows.ranks[1] == 1
    assert rows.top_token_ids.tolist() == order[:, :4].tolist()
    np.testing.assert_allclose(rows.top_logprobs, expected.gather(-1, order[:, :4]), rtol=1e-6)
    assert rows.token_ids.dtype == rows.ranks.dtype == rows.top_token_ids.dtype == np.int32


def test_asking_for_more_logprobs_than_tokens_gives_all_tokens():
    result = sample_rows(random_logits(1, 3), [admission(0, SamplingParams(logprobs=20))])
    assert sorted(logprobs_of(result).top_token_ids[0].tolist()) == [0, 1, 2]
