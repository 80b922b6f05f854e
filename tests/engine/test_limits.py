from typing import Any

import numpy as np
import pytest

from jitney.config import EngineConfig
from jitney.engine.limits import EngineLimits, check_fits, make_requests, resolve_limits
from jitney.errors import ConfigError, RequestError
from jitney.sampling_params import SamplingParams

LIMITS = EngineLimits(vocab_size=100, max_model_len=20, num_kv_blocks=5, eos_token_ids=(2,))


def make(prompt: Any, **params: Any) -> Any:
    return make_requests("id", prompt, SamplingParams(**params), LIMITS, engine_seed=0)


@pytest.mark.parametrize(
    "prompt",
    [
        [],
        "text",
        b"bytes",
        None,
        5,
        [1.5],
        ["1"],
        [[1, 2]],
        [1, [2]],
        [-1],
        [100],
        [True],
        {1: 2},
        np.zeros((2, 2), int),
        np.array(5),
    ],
)
def test_a_prompt_that_is_no_list_of_tokens_is_refused(prompt: Any) -> None:
    with pytest.raises(RequestError) as caught:
        make(prompt)
    assert caught.value.field == "prompt"


def test_numpy_prompts_are_fine() -> None:
    assert make(np.array([1, 2], dtype=np.int64))[0].prompt_token_ids.dtype == np.int32


def test_a_prompt_that_leaves_no_room_is_refused_with_both_numbers() -> None:
    with pytest.raises(RequestError, match=r"20 tokens, max_model_len is 20"):
        make([1] * 20)


def test_max_tokens_over_the_limit_is_refused_with_all_three_numbers() -> None:
    with pytest.raises(
        RequestError, match=r"\(15 tokens\) \+ max_tokens \(6\) is 21, above max_model_len \(20\).*to 5"
    ):
        make([1] * 15, max_tokens=6)
    assert make([1] * 15, max_tokens=5)[0].max_tokens == 5


def test_without_max_tokens_the_model_length_is_the_limit() -> None:
    assert make([1] * 15)[0].max_tokens == 5


def test_the_models_end_tokens_stop_unless_ignored() -> None:
    assert make([1], stop_token_ids=[9])[0].stop_token_ids == (2, 9)
    assert make([1], stop_token_ids=[9], ignore_eos=True)[0].stop_token_ids == (9,)


@pytest.mark.parametrize(
    "params",
    [
        {"logit_bias": {100: 1.0}},
        {"allowed_token_ids": [3, 100]},
        {"bad_token_ids": [100]},
        {"stop_token_ids": [100]},
        {"allowed_token_ids": [3], "bad_token_ids": [3]},
        {"allowed_token_ids": [2, 3], "bad_token_ids": [3], "min_tokens": 1},
        {"min_tokens": 20},
    ],
)
def test_parameters_that_do_not_fit_the_model_are_refused_by_name(params: dict[str, Any]) -> None:
    with pytest.raises(RequestError) as caught:
        make([1], **params)
    assert caught.value.field in params


def test_n_outputs_have_different_seeds_and_ids_but_one_prompt() -> None:
    requests = make([1, 2], n=3, seed=7)
    assert [request.request_id for request in requests] == ["id#0", "id#1", "id#2"]
    assert requests[0].seed == 7 and len({request.seed for request in requests}) == 3
    assert make([1, 2], n=3, seed=7)[2].seed == requests[2].seed


def test_only_the_first_output_computes_the_prompts_logprobs() -> None:
    requests = make([1, 2], n=3, prompt_logprobs=2)
    assert [request.params.prompt_logprobs for request in requests] == [2, None, None]


def test_seeds_drawn_by_the_engine_depend_on_its_seed_and_the_request() -> None:
    def seed(engine_seed: int, request_id: str) -> int:
        return make_requests(request_id, [1], SamplingParams(), LIMITS, engine_seed=engine_seed)[0].seed

    assert seed(0, "a") == seed(0, "a")
    assert len({seed(0, "a"), seed(0, "b"), seed(1, "a")}) == 3


@pytest.mark.parametrize(
    ("priority", "salt", "field"), [("high", "", "priority"), (2**40, "", "priority"), (0, 5, "cache_salt")]
)
def test_wrong_priority_and_salt_are_refused(priority: Any, salt: Any, field: str) -> None:
    with pytest.raises(RequestError) as caught:
        make_requests("id", [1], SamplingParams(), LIMITS, engine_seed=0, priority=priority, cache_salt=salt)
    assert caught.value.field == field


@pytest.mark.parametrize("field", ["request_id", "cache_salt"])
@pytest.mark.parametrize("name", [5, b"a", ["a"], None, "\ud800"])
def test_names_that_cannot_be_hashed_or_written_are_refused(field: str, name: Any) -> None:
    names = {"request_id": "id", "cache_salt": ""} | {field: name}
    with pytest.raises(RequestError) as caught:
        make_requests(names["request_id"], [1], SamplingParams(), LIMITS, engine_seed=0, cache_salt=names["cache_salt"])
    assert caught.value.field == field


@pytest.mark.parametrize(
    "params",
    [
        {"bad_token_ids": range(LIMITS.vocab_size)},
        {"allowed_token_ids": [5, 6], "bad_token_ids": [6, 5, 4]},
        {"allowed_token_ids": [5, 6], "stop_token_ids": [5, 6], "min_tokens": 1},
        {"allowed_token_ids": LIMITS.eos_token_ids, "min_tokens": 1},
        {"bad_token_ids": set(range(LIMITS.vocab_size)) - set(LIMITS.eos_token_ids), "min_tokens": 1},
        {"stop_token_ids": range(LIMITS.vocab_size), "min_tokens": 1},
    ],
)
def test_parameters_that_leave_nothing_to_sample_are_refused(params: dict[str, Any]) -> None:
    sampling = SamplingParams(**{name: ids if name == "min_tokens" else list(ids) for name, ids in params.items()})
    with pytest.raises(RequestError, match="forbids"):
        make_requests("id", [1], sampling, LIMITS, engine_seed=0)


def test_only_stop_tokens_may_be_allowed_where_no_minimum_forbids_them() -> None:
    (request,) = make_requests(
        "id", [1], SamplingParams(allowed_token_ids=list(LIMITS.eos_token_ids)), LIMITS, engine_seed=0
    )
    assert request.params.allowed_token_ids == LIMITS.eos_token_ids


def test_a_request_that_the_cache_can_never_hold_is_refused() -> None:
    small = EngineLimits(vocab_size=100, max_model_len=100, num_kv_blocks=5)
    (request,) = make_requests("id", [1] * 10, SamplingParams(max_tokens=12), small, engine_seed=0)
    with pytest.raises(RequestError, match="needs 21 tokens of KV cache, which holds 20"):
        check_fits(request, small, block_size=4)


def resolve(num_kv_blocks: int = 10, **settings: Any) -> EngineLimits:
    config = EngineConfig(**({"block_size": 4, "max_num_seqs": 2} | settings))
    return resolve_limits(config, vocab_size=100, max_position_embeddings=64, num_kv_blocks=num_kv_blocks)


def test_the_model_length_is_bounded_by_model_and_cache() -> None:
    assert resolve().max_model_len == 40
    assert resolve(num_kv_blocks=1000).max_model_len == 64
    assert resolve(max_model_len=8).max_model_len == 8
    with pytest.raises(ConfigError, match="max_model_len=65 is above the 64 positions"):
        resolve(num_kv_blocks=1000, max_model_len=65)
    with pytest.raises(ConfigError, match="max_model_len=41 does not fit the KV cache of 10 blocks x 4 = 40 tokens"):
        resolve(max_model_len=41)


def test_whole_prompts_need_a_budget_for_the_longest_one() -> None:
    with pytest.raises(ConfigError, match="at least"):
        resolve(enable_chunked_prefill=False, max_num_batched_tokens=40)
    assert resolve(enable_chunked_prefill=False, max_num_batched_tokens=41).max_model_len == 40
