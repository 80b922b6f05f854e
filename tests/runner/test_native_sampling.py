"""The native runner's sampling against the reference in torch, and against what its parameters promise."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.models.decoder.families import from_config
from tests.models.decoder.test_native import FAMILIES, isas, native

from jitney.models.decoder.native import NativeDecoder
from jitney.runner.host_logprobs import host_logprobs
from jitney.runner.logprobs import logprobs_of
from jitney.runner.native_sampling import NativeSampling
from jitney.runner.sampler import SampleRows, sample
from jitney.runner.sampling_state import SamplingState
from jitney.sampling_params import SamplingParams
from jitney.types import SlotAdmission


@pytest.fixture(scope="module")
def decoders(tmp_path_factory: pytest.TempPathFactory) -> list[NativeDecoder]:
    model = from_config(FAMILIES["llama"]())
    return [native(model, tmp_path_factory.mktemp("model"), isa).decoder for isa in isas()]


def admission(slot: int, params: SamplingParams, seed: int = 0) -> SlotAdmission:
    prompt, output = np.array([1, 2, 3, 2], np.int32), np.array([5, 5], np.int32)
    return SlotAdmission(slot, params, seed, (7,), prompt, output)


def drawn(
    decoder: NativeDecoder, logits: np.ndarray, params: list[SamplingParams], position: int = 6, seed: int = 0
) -> tuple[list[int], list[bool]]:
    state = NativeSampling(len(params), logits.shape[1])
    state.admit(admission(slot, one, seed + slot) for slot, one in enumerate(params))
    slots, last = np.arange(len(params), dtype=np.int32), np.zeros(len(params), np.int32)
    positions = np.full(len(params), position, np.int32)
    tokens, is_valid = decoder.sample(np.ascontiguousarray(logits), slots, positions, state.choices, last)
    assert last.tolist() == tokens.tolist()
    return tokens.tolist(), is_valid.tolist()


def drawn_by_torch(logits: np.ndarray, params: list[SamplingParams], position: int = 6, seed: int = 0) -> list[int]:
    state = SamplingState(len(params), logits.shape[1], torch.device("cpu"))
    state.admit(*(admission(slot, one, seed + slot) for slot, one in enumerate(params)))
    slots = np.arange(len(params), dtype=np.int32)
    positions = np.full(len(params), position, np.int32)
    rows = SampleRows(torch.from_numpy(slots).long(), torch.from_numpy(positions).long(), slots, positions)
    return sample(torch.from_numpy(logits.copy()), rows, state).token_ids.tolist()


PARAMS = st.builds(
    SamplingParams,
    temperature=st.sampled_from([0.0, 0.01, 0.7, 1.0, 3.0, 100.0]),
    top_k=st.sampled_from([0, 1, 2, 5, 40, 255, 10_000]),
    top_p=st.sampled_from([1.0, 0.999, 0.9, 0.5, 0.01]),
    min_p=st.sampled_from([0.0, 0.0, 0.05, 1.0]),
)


@settings(deadline=None, max_examples=150)
@given(st.lists(PARAMS, min_size=1, max_size=6), st.integers(1, 700), st.integers(0, 2**31), st.integers(1, 5))
def test_draws_are_those_of_the_reference(decoders, params, vocab_size, seed, spread) -> None:
    logits = (np.random.default_rng(seed).standard_normal((len(params), vocab_size)) * 2 * spread).astype(np.float32)
    expected = drawn_by_torch(logits, params, seed=seed)
    for decoder in decoders:
        assert drawn(decoder, logits, params, seed=seed) == (expected, [True] * len(params))


@settings(deadline=None, max_examples=60)
@given(PARAMS, st.integers(0, 2**31))
def test_equal_logits_are_kept_from_the_lowest_id_on(decoders, params, seed) -> None:
    logits = np.random.default_rng(seed).integers(0, 4, (1, 200)).astype(np.float32)
    assert drawn(decoders[-1], logits, [params], seed=seed)[0] == drawn_by_torch(logits, [params], seed=seed)


def test_a_token_comes_as_often_as_its_probability_says(decoders) -> None:
    logits = np.log(np.array([[0.5, 0.25, 0.15, 0.1]], np.float32))
    counts = np.zeros(4)
    for position in range(4000):
        counts[drawn(decoders[-1], logits, [SamplingParams(temperature=1.0)], position)[0][0]] += 1
    assert np.abs(counts / 4000 - np.exp(logits[0])).max() < 4 * math.sqrt(0.25 / 4000)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_rows_that_cannot_be_sampled_are_marked_and_the_others_are_not(decoders, bad, temperature) -> None:
    logits = np.zeros((4, 100), np.float32)
    logits[1, 97], logits[2] = bad, -np.inf
    params = [SamplingParams(temperature=temperature)] * 4
    for decoder in decoders:
        tokens, is_valid = drawn(decoder, logits, params)
        assert is_valid == [True, False, False, True] and all(0 <= token < 100 for token in tokens)


@settings(deadline=None, max_examples=100)
@given(
    st.builds(
        SamplingParams,
        repetition_penalty=st.sampled_from([1.0, 0.5, 1.7]),
        presence_penalty=st.sampled_from([0.0, 1.5]),
        frequency_penalty=st.sampled_from([0.0, -0.5]),
        logit_bias=st.dictionaries(st.integers(0, 20), st.floats(-50, 50), max_size=3),
        allowed_token_ids=st.none() | st.lists(st.integers(0, 20), min_size=1),
        bad_token_ids=st.lists(st.integers(0, 20), max_size=3),
        min_tokens=st.integers(0, 5),
    ),
    st.integers(0, 12),
)
def test_rules_and_penalties_change_logits_as_the_reference_does(params, position) -> None:
    logits = np.random.default_rng(position).standard_normal((1, 12)).astype(np.float32)
    reference, ours = SamplingState(1, 12, torch.device("cpu")), NativeSampling(1, 12)
    expected = torch.from_numpy(logits.copy())
    reference.admit(admission(0, params))
    ours.admit([admission(0, params)])
    for token in (3, 11, 3):  # what is sampled counts
        expected, got = torch.from_numpy(logits.copy()), logits.copy()
        reference.adjust(0, position, expected[0])
        if 0 in ours.rare:
            ours.rare[0].adjust(got[0], position)
            ours.rare[0].append(token)
        np.testing.assert_allclose(got, expected.numpy(), rtol=1e-6)
        if params.uses_penalties:
            reference.append_token(0, torch.tensor([token]))


def test_a_slot_forgets_its_last_request() -> None:
    state = NativeSampling(2, 50)
    state.admit([admission(1, SamplingParams(bad_token_ids=[1], temperature=0.5, top_k=3))])
    assert state.is_rare.tolist() == [False, True]
    state.admit([admission(1, SamplingParams(temperature=0.0))])
    assert not state.is_rare.any() and not state.rare
    assert state.choices[1]["is_random"] == 0 and state.choices[1]["top_k"] == 0


@pytest.mark.parametrize("num_top", [0, 1, 5, 40])
def test_logprobs_are_those_of_the_reference(num_top) -> None:
    logits = (np.random.default_rng(num_top).standard_normal((3, 30)) * 4).astype(np.float32)
    logits[1, 4] = -np.inf
    token_ids = np.array([3, 4, 29], np.int32)
    ours = host_logprobs(logits, token_ids, num_top)
    theirs = logprobs_of(torch.from_numpy(logits), torch.from_numpy(token_ids).long(), num_top)
    np.testing.assert_allclose(ours.logprobs, theirs.logprobs, rtol=1e-5)
    np.testing.assert_allclose(ours.top_logprobs, theirs.top_logprobs, rtol=1e-5)
    assert ours.ranks.tolist() == theirs.ranks.tolist() and ours.token_ids.tolist() == token_ids.tolist()
    assert ours.top_token_ids.tolist() == theirs.top_token_ids.tolist()
