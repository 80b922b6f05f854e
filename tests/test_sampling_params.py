from typing import Any

import numpy as np
import pytest

from jitney.errors import RequestError
from jitney.sampling_params import SamplingParams


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("n", 0),
        ("n", 1.0),
        ("n", True),
        ("temperature", -0.1),
        ("temperature", float("nan")),
        ("temperature", float("inf")),
        ("temperature", "hot"),
        ("temperature", None),
        ("top_k", -2),
        ("top_p", 0.0),
        ("top_p", 1.01),
        ("min_p", 1.5),
        ("repetition_penalty", 0.0),
        ("repetition_penalty", -1),
        ("repetition_penalty", 1e-320),
        ("presence_penalty", 2.1),
        ("frequency_penalty", -2.1),
        ("logit_bias", [1, 2]),
        ("logit_bias", {"1": 2.0}),
        ("logit_bias", {1: 101}),
        ("logit_bias", {-1: 1}),
        ("allowed_token_ids", []),
        ("allowed_token_ids", [1.5]),
        ("allowed_token_ids", 3),
        ("bad_token_ids", "abc"),
        ("stop_token_ids", [-1]),
        ("max_tokens", 0),
        ("max_tokens", "many"),
        ("min_tokens", -1),
        ("stop", ""),
        ("stop", ["a", ""]),
        ("stop", [1]),
        ("stop", b"bytes"),
        ("stop", 5),
        ("seed", -1),
        ("seed", 2**63),
        ("seed", 1.5),
        ("logprobs", 21),
        ("logprobs", True),
        ("prompt_logprobs", -1),
        ("ignore_eos", "yes"),
        ("skip_special_tokens", 1),
    ],
)
def test_a_wrong_value_is_refused_with_the_name_of_its_field(field: str, value: Any) -> None:
    with pytest.raises(RequestError, match=field) as caught:
        SamplingParams(**{field: value})
    assert caught.value.field == field


def test_min_tokens_above_max_tokens_is_refused() -> None:
    with pytest.raises(RequestError, match="min_tokens=5 is above max_tokens=4"):
        SamplingParams(min_tokens=5, max_tokens=4)


def test_stop_may_be_one_string_or_several() -> None:
    assert SamplingParams(stop="end").stop_strings == ("end",)
    assert SamplingParams(stop=["a", "b"]).stop_strings == ("a", "b")
    assert SamplingParams().stop_strings == ()


def test_an_unknown_parameter_is_an_error() -> None:
    with pytest.raises(TypeError, match="temprature"):
        SamplingParams(temprature=1.0)  # type: ignore[call-arg]


@pytest.mark.parametrize("name", ["n", "top_k", "max_tokens", "seed", "logprobs", "prompt_logprobs"])
def test_small_integers_of_numpy_become_python_integers_which_never_overflow(name: str) -> None:
    assert type(getattr(SamplingParams(**{name: np.int8(3)}), name)) is int


def test_collections_that_the_caller_changes_later_change_no_request() -> None:
    bias, ids, stop = {np.int8(1): 2}, [np.int8(1)], ["a"]
    params = SamplingParams(logit_bias=bias, allowed_token_ids=ids, bad_token_ids=ids, stop_token_ids=ids, stop=stop)
    before = (params.logit_bias, params.allowed_token_ids, params.bad_token_ids, params.stop_token_ids, params.stop)
    bias[np.int8(2)], ids[0], stop[0] = 100, np.int8(9), "b"
    assert before == ({1: 2.0}, (1,), (1,), (1,), ("a",))
