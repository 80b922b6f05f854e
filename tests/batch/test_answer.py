from jitney.batch.answer import answer_line, failure_line
from jitney.batch.body import CHAT, COMPLETIONS, BatchRequest
from jitney.batch.failure import Failure
from jitney.outputs import CompletionOutput, Logprob, RequestOutput
from jitney.sampling_params import SamplingParams
from jitney.types import RequestMetrics


def output(logprobs: list[dict[int, Logprob]] | None = None, n: int = 1) -> RequestOutput:
    choices = [CompletionOutput(index, "あb", [5, 6], "stop", logprobs=logprobs) for index in range(n)]
    return RequestOutput("r", "Hi", [1, 2, 3], choices, True, metrics=RequestMetrics(num_cached_tokens=2))


LOGPROBS = [
    {5: Logprob(-2.0, 3, "あ"), 7: Logprob(-0.5, 1, "x"), 8: Logprob(-1.0, 2, "y")},
    {6: Logprob(float("-inf"), 1, "b"), 8: Logprob(-1.0, 2, "y")},
]


def test_a_chat_answer_has_the_shape_of_openais() -> None:
    line = answer_line("a", BatchRequest(CHAT, SamplingParams(n=2), model="mine"), output(n=2), "served")
    body = line["response"]["body"]
    assert (line["custom_id"], line["error"], line["response"]["status_code"]) == ("a", None, 200)
    assert (body["object"], body["model"]) == ("chat.completion", "mine")
    assert body["choices"] == [
        {
            "index": index,
            "message": {"role": "assistant", "content": "あb"},
            "logprobs": None,
            "finish_reason": "stop",
        }
        for index in range(2)
    ]
    assert body["usage"] == {
        "prompt_tokens": 3,
        "completion_tokens": 4,
        "total_tokens": 7,
        "prompt_tokens_details": {"cached_tokens": 2},
    }


def test_a_completion_has_its_text_and_the_served_models_name() -> None:
    body = answer_line("a", BatchRequest(COMPLETIONS, SamplingParams()), output(), "served")["response"]["body"]
    assert (body["object"], body["model"]) == ("text_completion", "served")
    assert body["choices"] == [{"index": 0, "text": "あb", "logprobs": None, "finish_reason": "stop"}]


def test_chat_logprobs_name_the_sampled_token_and_the_most_likely_ones_in_order() -> None:
    request = BatchRequest(CHAT, SamplingParams(logprobs=2))
    choice = answer_line("a", request, output(LOGPROBS), "m")["response"]["body"]["choices"][0]
    first, second = choice["logprobs"]["content"]
    assert (first["token"], first["logprob"], first["bytes"]) == ("あ", -2.0, list("あ".encode()))
    assert [entry["token"] for entry in first["top_logprobs"]] == ["x", "y"]
    assert second["logprob"] == -9999.0


def test_completion_logprobs_are_lists_over_the_tokens() -> None:
    request = BatchRequest(COMPLETIONS, SamplingParams(logprobs=1))
    choice = answer_line("a", request, output(LOGPROBS), "m")["response"]["body"]["choices"][0]
    assert choice["logprobs"] == {
        "tokens": ["あ", "b"],
        "token_logprobs": [-2.0, -9999.0],
        "top_logprobs": [{"x": -0.5}, {"b": -9999.0}],
        "text_offset": [0, 1],
    }


def test_a_failure_says_why_in_both_places_readers_look() -> None:
    line = failure_line(None, Failure(400, "missing_field", "url is missing", "url"))
    error = {"message": "url is missing", "type": "invalid_request_error", "param": "url", "code": "missing_field"}
    assert (line["custom_id"], line["error"]) == (None, error)
    assert (line["response"]["status_code"], line["response"]["body"]) == (400, {"error": error})


def test_the_engines_failure_is_a_server_error() -> None:
    assert failure_line("a", Failure(500, "step_failed", "x", None))["error"]["type"] == "server_error"
