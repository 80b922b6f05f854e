import json
from typing import Any

import pytest

from jitney.batch.body import CHAT, COMPLETIONS, BatchRequest
from jitney.batch.failure import MAX_MESSAGE_LENGTH, LineError, failure_of
from jitney.batch.line import custom_id_of, parse_line, parse_request
from jitney.errors import RequestError, StepFailedError
from jitney.sampling_params import SamplingParams

MESSAGES = [{"role": "user", "content": "Hi"}]


def chat(**body: Any) -> dict[str, Any]:
    return {"custom_id": "a", "method": "POST", "url": CHAT, "body": {"model": "m", "messages": MESSAGES} | body}


def completion(**body: Any) -> dict[str, Any]:
    return {"custom_id": "a", "method": "POST", "url": COMPLETIONS, "body": {"model": "m", "prompt": "Hi"} | body}


def parse(fields: dict[str, Any]) -> BatchRequest:
    return parse_request(parse_line(json.dumps(fields).encode()))


def test_a_chat_line_becomes_a_request() -> None:
    request = parse(chat(max_completion_tokens=7, temperature=0, logprobs=True, top_logprobs=3, priority=-1))
    assert request.messages == MESSAGES and request.prompt is None
    assert request.params == SamplingParams(max_tokens=7, temperature=0, logprobs=3)
    assert (request.url, request.model, request.priority) == (CHAT, "m", -1)


def test_every_sampling_parameter_is_taken_under_its_own_name() -> None:
    given = {
        "n": 2,
        "temperature": 0.5,
        "top_k": 5,
        "top_p": 0.9,
        "min_p": 0.1,
        "repetition_penalty": 1.1,
        "presence_penalty": 0.5,
        "frequency_penalty": -0.5,
        "logit_bias": {"17": -3},
        "allowed_token_ids": [1, 2],
        "bad_token_ids": [3],
        "min_tokens": 1,
        "stop": ["x"],
        "stop_token_ids": [4],
        "include_stop_str_in_output": True,
        "ignore_eos": True,
        "seed": 7,
        "skip_special_tokens": False,
    }
    expected = SamplingParams(**given | {"logit_bias": {17: -3}, "max_tokens": 9, "logprobs": 2})
    assert parse(completion(**given, max_tokens=9, logprobs=2)).params == expected


def test_a_prompt_may_be_token_ids() -> None:
    assert parse(completion(prompt=[1, 2])).prompt == {"prompt_token_ids": [1, 2]}


def test_completions_stop_after_16_tokens_and_chats_when_they_end() -> None:
    assert parse(completion()).params.max_tokens == 16
    assert parse(chat()).params.max_tokens is None


def test_null_means_the_default() -> None:
    body = dict.fromkeys(("temperature", "stop", "max_tokens", "logprobs", "top_logprobs", "stream", "seed"))
    assert parse(chat(**body)) == parse(chat())


@pytest.mark.parametrize(
    "harmless",
    [
        {"stream": False},
        {"response_format": {"type": "text"}},
        {"user": "u"},
        {"metadata": {"a": "b"}},
        {"tools": []},
        {"max_tokens": 5, "max_completion_tokens": 5},
    ],
)
def test_parameters_that_ask_for_nothing_are_accepted(harmless: dict[str, Any]) -> None:
    assert parse(chat(**harmless)).messages == MESSAGES


HOSTILE_LINES = [
    (b"{", "invalid_json", None),
    (b"not json", "invalid_json", None),
    (b"\xff\xfe{}", "invalid_json", None),
    (b"[" * 100_000, "invalid_json", None),
    (b'{"custom_id": ' + b"9" * 10_000 + b"}", "invalid_json", None),
    (b'{"custom_id": NaN}', "invalid_json", None),
    (b'{"custom_id": "\\ud800"}', "invalid_json", None),
    (b'{"custom_id": "a"} {"custom_id": "b"}', "invalid_json", None),
    (b"[]", "invalid_type", None),
    (b"null", "invalid_type", None),
    (b'"text"', "invalid_type", None),
    (b"{}", "missing_field", "custom_id"),
    (b'{"custom_id": 5}', "invalid_type", "custom_id"),
    (b'{"custom_id": ""}', "invalid_type", "custom_id"),
]


@pytest.mark.parametrize(("line", "code", "field"), HOSTILE_LINES, ids=range(len(HOSTILE_LINES)))
def test_a_line_that_is_no_request_is_refused_with_its_reason(line: bytes, code: str, field: str | None) -> None:
    with pytest.raises(LineError) as caught:
        custom_id_of(parse_line(line))
    assert (caught.value.code, caught.value.field) == (code, field)


HOSTILE_FIELDS: list[tuple[dict[str, Any], str | None]] = [
    ({"custom_id": "a"}, "method"),
    (chat() | {"method": "GET"}, "method"),
    (chat() | {"url": "/v1/embeddings"}, "url"),
    (chat() | {"url": ["/v1/chat/completions"]}, "url"),
    (chat() | {"body": None}, "body"),
    (chat() | {"body": []}, "body"),
    (chat() | {"temperature": 1}, "temperature"),
    (chat(messages=None), "messages"),
    (chat(messages="Hi"), "messages"),
    (chat(prompt="Hi"), "prompt"),
    (completion(messages=MESSAGES), "messages"),
    (completion(prompt=None), "prompt"),
    (completion(prompt=5), "prompt"),
    (completion(prompt=["a", "b"]), "prompt"),
    (completion(prompt=[[1], [2]]), "prompt"),
    (completion(prompt=[1, "a"]), "prompt"),
    (completion(prompt=[True]), "prompt"),
    (completion(prompt=[1.5]), "prompt"),
    (completion(prompt={"prompt_token_ids": [1]}), "prompt"),
    (chat(stream=True), "stream"),
    (chat(temprature=1), "temprature"),
    (chat(tools=[{"type": "function"}]), "tools"),
    (chat(response_format={"type": "json_object"}), "response_format"),
    (completion(echo=True), "echo"),
    (completion(best_of=2), "best_of"),
    (completion(suffix="x"), "suffix"),
    (completion(max_completion_tokens=3), "max_completion_tokens"),
    (chat(model=5), "model"),
    (chat(user=5), "user"),
    (chat(temperature="hot"), "temperature"),
    (chat(temperature=-1), "temperature"),
    (chat(temperature=10**400), "temperature"),
    (chat(temperature=True), "temperature"),
    (chat(max_tokens=0), "max_tokens"),
    (chat(max_tokens="12"), "max_tokens"),
    (chat(max_tokens=1.5), "max_tokens"),
    (chat(max_tokens=1, max_completion_tokens=2), "max_completion_tokens"),
    (chat(n=0), "n"),
    (chat(n=[]), "n"),
    (chat(stop=[""]), "stop"),
    (chat(stop={"a": 1}), "stop"),
    (chat(stop=5), "stop"),
    (chat(seed=-1), "seed"),
    (chat(logprobs=5), "logprobs"),
    (chat(top_logprobs=5), "top_logprobs"),
    (chat(logprobs=True, top_logprobs=99), "top_logprobs"),
    (chat(max_completion_tokens=0), "max_completion_tokens"),
    (completion(logprobs=True), "logprobs"),
    (completion(prompt_logprobs=1), "prompt_logprobs"),
    (chat(logit_bias={"x": 1}), "logit_bias"),
    (chat(logit_bias={"-1": 1}), "logit_bias"),
    (chat(logit_bias={"9" * 5000: 1}), "logit_bias"),
    (chat(logit_bias={"1": "a"}), "logit_bias"),
    (chat(logit_bias=[1]), "logit_bias"),
    (chat(stop_token_ids="12"), "stop_token_ids"),
    (chat(ignore_eos="yes"), "ignore_eos"),
    (chat(priority="high"), "priority"),
    (chat(priority=True), "priority"),
    (chat(cache_salt=1), "cache_salt"),
    (chat(chat_template_kwargs=[]), "chat_template_kwargs"),
]


@pytest.mark.parametrize(
    ("fields", "field"), HOSTILE_FIELDS, ids=[f"{i}-{f}" for i, (_, f) in enumerate(HOSTILE_FIELDS)]
)
def test_a_wrong_field_is_refused_by_name(fields: dict[str, Any], field: str | None) -> None:
    with pytest.raises(RequestError) as caught:
        parse(fields)
    assert caught.value.field == field
    assert str(field) in str(caught.value)


def test_a_parameter_of_the_other_url_is_named_as_such() -> None:
    with pytest.raises(LineError, match="it belongs to /v1/completions"):
        parse(chat(prompt="Hi"))


def test_a_byte_order_mark_is_no_part_of_the_first_line() -> None:
    assert parse_line(b'\xef\xbb\xbf{"a": "\\ud83d\\ude00"}') == {"a": "😀"}


@pytest.mark.parametrize(
    ("error", "status", "code", "param"),
    [
        (RequestError("top_p=2", "top_p"), 400, "invalid_value", "top_p"),
        (LineError("missing_field", "url is missing", "url"), 400, "missing_field", "url"),
        (StepFailedError("the step failed"), 500, "step_failed", None),
        (ZeroDivisionError(), 500, "internal_error", None),
    ],
)
def test_the_caller_is_at_fault_or_the_engine_is(error: Exception, status: int, code: str, param: str | None) -> None:
    failure = failure_of(error, 7)
    assert (failure.status_code, failure.code, failure.param) == (status, code, param)
    assert failure.message.startswith("line 7: ") and len(failure.message) > len("line 7: ")


def test_a_message_that_quotes_a_whole_book_is_cut() -> None:
    message = failure_of(RequestError("x" * 1_000_000), 1).message
    assert len(message) < MAX_MESSAGE_LENGTH + 20
