import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from jitney.sampling_params import SamplingParams
from jitney.types import StepInputs

PROMPT = [5, 17, 3, 44, 9, 9, 30, 2, 11]


def test_prefill_then_decode_gives_the_models_greedy_tokens(model, driver):
    driver.admit(0, PROMPT)
    driver.step((0, len(PROMPT)))
    for _ in range(15):
        driver.step((0, 1))
    assert driver.outputs[0] == model.greedy(PROMPT, 16)


@pytest.mark.parametrize("block_size", [1, 3, 16, 64])
@pytest.mark.parametrize("chunk", [1, 2, 5, 9])
def test_chunked_prefill_gives_the_same_tokens_as_a_whole_one(model, make_driver, block_size, chunk):
    driver = make_driver(model, block_size)
    driver.admit(2, PROMPT)
    for start in range(0, len(PROMPT), chunk):
        driver.step((2, min(chunk, len(PROMPT) - start)))
    for _ in range(7):
        driver.step((2, 1))
    assert driver.outputs[2] == model.greedy(PROMPT, 8)


def test_a_chunk_short_of_the_prompts_end_samples_nothing(driver):
    driver.admit(0, PROMPT)
    output = driver.step((0, 4))
    assert output.token_ids.shape == output.is_valid.shape == (0,)
    assert output.token_ids.dtype == np.int32


def test_a_single_prompt_token_is_read_from_the_inputs_and_not_carried_over(model, driver):
    driver.admit(0, PROMPT)
    driver.step((0, len(PROMPT)))
    driver.admit(0, [7])
    driver.step((0, 1))
    driver.step((0, 1))
    assert driver.outputs[0] == model.greedy([7], 2)


def test_a_slot_taken_over_by_another_request_shows_nothing_of_the_last_one(model, driver):
    driver.admit(1, PROMPT, SamplingParams(seed=1, logit_bias={3: 100.0}, repetition_penalty=2.0, logprobs=2))
    driver.step((1, len(PROMPT)))
    driver.step((1, 1))
    driver.admit(1, [8, 1, 2])
    output = driver.step((1, 3))
    driver.step((1, 1))
    assert driver.outputs[1] == model.greedy([8, 1, 2], 2)
    assert output.logprobs is None and output.logprob_rows is None


def test_rare_rules_of_the_last_request_do_not_reach_a_request_with_other_rare_rules(model, make_driver):
    biased = SamplingParams(temperature=0, logit_bias={3: 100.0})
    penalised = SamplingParams(temperature=0, repetition_penalty=2.0)
    used, fresh = make_driver(model), make_driver(model)
    for first, second in ((biased, penalised), (penalised, SamplingParams(temperature=0, bad_token_ids=[0]))):
        used.admit(1, PROMPT, first)
        used.step((1, len(PROMPT)))
        for driver in (used, fresh):
            driver.admit(1, PROMPT, second)
            driver.step((1, len(PROMPT)))
            driver.step((1, 1))
        assert used.outputs[1] == fresh.outputs[1]


def test_the_last_of_several_updates_of_one_table_entry_wins(make_driver, model):
    driver = make_driver(model, block_size=4)
    driver.admit(0, PROMPT)
    inputs = driver.pack((0, len(PROMPT)))
    sections = inputs.data[: -2 - 9], np.array([0, 0, 0, 0, 1, 0], np.int32), inputs.data[-2 - 9 :]
    again = StepInputs(
        0, 1, 0, 1, len(PROMPT), 5, np.concatenate(sections), inputs.admissions, inputs.prompt_logprob_rows
    )
    assert driver.runner.run(again).token_ids.tolist() == model.greedy(PROMPT, 1)


def test_a_failed_step_leaves_the_runner_usable(model, driver):
    driver.admit(0, PROMPT)
    inputs = driver.pack((0, len(PROMPT)))
    model.fails = True
    with pytest.raises(RuntimeError, match="forward failed"):
        driver.runner.run(inputs)
    model.fails = False
    driver.admit(0, PROMPT)
    driver.step((0, len(PROMPT)))
    assert driver.outputs[0] == model.greedy(PROMPT, 1)


def test_rows_with_nan_are_marked_and_their_batch_mates_untouched(make_model, make_driver):
    model = make_model(poisoned_token=60)
    driver = make_driver(model)
    sampled = SamplingParams(top_p=0.9, presence_penalty=0.5, bad_token_ids=[60], logprobs=1)
    driver.admit(0, PROMPT)
    driver.admit(1, [60, 1], SamplingParams(temperature=0))
    driver.admit(2, [60, 2], sampled)
    driver.admit(3, PROMPT, sampled, seed=3)
    rows = [(slot, n) for slot, n in enumerate((9, 2, 2, 9))]
    outputs = [driver.step(*rows), *(driver.step(*((slot, 1) for slot in range(4))) for _ in range(3))]
    alone = make_driver(model)
    alone.admit(3, PROMPT, sampled, seed=3)
    alone.step((3, 9))
    for _ in range(3):
        alone.step((3, 1))
    assert all(output.is_valid.tolist() == [True, False, False, True] for output in outputs)
    assert all(0 <= token < model.spec.vocab_size for token in driver.outputs[1] + driver.outputs[2])
    assert driver.outputs[0] == model.greedy(PROMPT, 4)
    assert driver.outputs[3] == alone.outputs[3]


@pytest.mark.parametrize("chunk", [1, 4, 9])
def test_prompt_logprobs_over_chunks_equal_those_of_a_full_forward(model, driver, chunk):
    driver.admit(1, PROMPT, SamplingParams(temperature=0, prompt_logprobs=3))
    driver.admit(0, [1, 2])
    driver.step((0, 2))
    parts = [
        driver.step((0, 1), (1, min(chunk, len(PROMPT) - s))).prompt_logprobs[1] for s in range(0, len(PROMPT), chunk)
    ]
    expected = torch.stack([model.logits(PROMPT[:n]) for n in range(1, len(PROMPT))]).log_softmax(-1)
    assert np.concatenate([p.token_ids for p in parts]).tolist() == PROMPT[1:]
    np.testing.assert_allclose(
        np.concatenate([p.logprobs for p in parts]), expected.gather(-1, torch.tensor(PROMPT[1:])[:, None])[:, 0],
        rtol=1e-6,
    )  # fmt: skip
    top = expected.topk(3)
    assert np.concatenate([p.top_token_ids for p in parts]).tolist() == top.indices.tolist()
    assert driver.outputs[0] == model.greedy([1, 2], 1 + -(-len(PROMPT) // chunk))


def test_prompt_logprobs_after_a_preemption_cover_the_prompt_only(model, driver):
    driver.admit(0, PROMPT[:3], SamplingParams(temperature=0, prompt_logprobs=0), output=PROMPT[3:])
    output = driver.step((0, len(PROMPT)))
    assert output.prompt_logprobs[0].token_ids.tolist() == PROMPT[1:3]
    assert output.prompt_logprobs[0].top_token_ids.shape == (2, 0)


PENALISED = SamplingParams(temperature=0, repetition_penalty=1.7, presence_penalty=0.6, frequency_penalty=0.9)


@pytest.mark.parametrize("params", [PENALISED, SamplingParams(temperature=0.9, frequency_penalty=1.5, top_k=20)])
def test_a_preempted_request_goes_on_as_if_it_never_left(model, make_driver, params):
    driver, preempted = make_driver(model), make_driver(model)
    for d in (driver, preempted):
        d.admit(0, PROMPT, params, seed=11)
        d.step((0, len(PROMPT)))
    for _ in range(12):
        driver.step((0, 1))
    for _ in range(5):
        preempted.step((0, 1))
    so_far = preempted.outputs[0]
    preempted.admit(3, PROMPT, params, seed=11, output=so_far)
    preempted.step((3, len(PROMPT)))
    preempted.step((3, len(so_far)))
    for _ in range(6):
        preempted.step((3, 1))
    assert preempted.outputs[3] == driver.outputs[0]


def test_stop_tokens_wait_for_min_tokens(model, driver):
    stop = model.greedy(PROMPT, 1)[0]
    free = SamplingParams(temperature=0, logit_bias={stop: 100.0})
    held = SamplingParams(temperature=0, logit_bias={stop: 100.0}, min_tokens=3)
    for slot, params in enumerate((free, held)):
        driver.admit(slot, PROMPT, params, stop_token_ids=(stop, 10**6))
    driver.admit(2, PROMPT, held, output=[1, 2], stop_token_ids=(stop,))
    driver.step((0, 9), (1, 9), (2, 11))
    for _ in range(3):
        driver.step((0, 1), (1, 1), (2, 1))
    assert [token == stop for token in driver.outputs[0]] == [True] * 4
    assert [token == stop for token in driver.outputs[1]] == [False, False, False, True]
    assert [token == stop for token in driver.outputs[2][2:]] == [False, True, True, True]


def test_a_decode_row_on_scratch_disturbs_no_one(model, driver):
    driver.scratch_slots.add(3)
    driver.admit(0, PROMPT)
    driver.admit(3, [1, 2, 3])
    driver.step((0, len(PROMPT)), (3, 3))
    for _ in range(6):
        driver.step((3, 1), (0, 1))
    assert driver.outputs[0] == model.greedy(PROMPT, 7)


@st.composite
def _traffic(draw):
    requests = draw(
        st.lists(
            st.tuples(
                st.lists(st.integers(0, 60), min_size=1, max_size=12),
                st.sampled_from([
                    SamplingParams(temperature=0), SamplingParams(), SamplingParams(top_k=5, temperature=0.7),
                    SamplingParams(top_p=0.8, logprobs=2), SamplingParams(min_p=0.1, frequency_penalty=1.0),
                    SamplingParams(allowed_token_ids=[1, 2, 3, 50], repetition_penalty=0.5),
                ]),
            ),
            min_size=1, max_size=4,
        )
    )  # fmt: skip
    return requests, draw(st.integers(1, 8)), draw(st.lists(st.integers(1, 15), min_size=25, max_size=25))


@given(_traffic())
@settings(max_examples=40, deadline=None)
def test_tokens_do_not_depend_on_batch_mates_chunks_or_block_size(make_model, make_driver, traffic):
    requests, block_size, choices = traffic
    model = make_model()
    together = make_driver(model, block_size)
    for slot, (prompt, params) in enumerate(requests):
        together.admit(slot, prompt, params, seed=slot)
    left = {slot: len(prompt) for slot, (prompt, _) in enumerate(requests)}
    for choice in choices:
        chosen = [slot for slot in left if choice & (1 << slot)]
        rows = [(s, 1) for s in chosen if not left[s]] + [(s, min(left[s], 1 + choice % 4)) for s in chosen if left[s]]
        for slot, length in rows:
            left[slot] = max(0, left[slot] - length)
        if rows:
            together.step(*rows)
    for slot, (prompt, params) in enumerate(requests):
        alone = make_driver(model, 16)
        alone.admit(0, prompt, params, seed=slot)
        alone.step((0, len(prompt)))
        while len(alone.outputs[0]) < len(together.outputs[slot]):
            alone.step((0, 1))
        assert alone.outputs[0][: len(together.outputs[slot])] == together.outputs[slot]
