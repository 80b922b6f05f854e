"""A finished request to the output line OpenAI would write. Knows no engine and no files."""

import time
from typing import Any
from uuid import uuid4

from jitney.batch.body import CHAT, BatchRequest
from jitney.batch.failure import Failure
from jitney.outputs import CompletionOutput, Logprob, RequestOutput

JsonObject = dict[str, Any]

LEAST_LOGPROB = -9999.0
"""JSON has no minus infinity; OpenAI and vLLM write this."""


def answer_line(custom_id: str, request: BatchRequest, output: RequestOutput, model: str) -> JsonObject:
    """The line of a request that was served. `model` is named where the request names none."""
    is_chat = request.url == CHAT
    body = {
        "id": f"{'chatcmpl' if is_chat else 'cmpl'}-{uuid4().hex}",
        "object": "chat.completion" if is_chat else "text_completion",
        "created": int(time.time()),
        "model": request.model or model,
        "choices": [
            _chat_choice(request, choice) if is_chat else _text_choice(request, choice) for choice in output.outputs
        ],
        "usage": _usage(output),
    }
    return _line(custom_id, 200, body, None)


def failure_line(custom_id: str | None, failure: Failure) -> JsonObject:
    """The line of a request that has no answer. The error stands where OpenAI's and where vLLM's readers look."""
    error = failure.as_error()
    return _line(custom_id, failure.status_code, {"error": error}, error)


def _line(custom_id: str | None, status_code: int, body: JsonObject, error: JsonObject | None) -> JsonObject:
    response = {"status_code": status_code, "request_id": f"req_{uuid4().hex}", "body": body}
    return {"id": f"batch_req_{uuid4().hex}", "custom_id": custom_id, "response": response, "error": error}


def _usage(output: RequestOutput) -> JsonObject:
    num_prompt = len(output.prompt_token_ids)
    num_completion = sum(len(choice.token_ids) for choice in output.outputs)
    return {
        "prompt_tokens": num_prompt,
        "completion_tokens": num_completion,
        "total_tokens": num_prompt + num_completion,
        "prompt_tokens_details": {"cached_tokens": output.metrics.num_cached_tokens},
    }


def _chat_choice(request: BatchRequest, output: CompletionOutput) -> JsonObject:
    logprobs = None
    if output.logprobs is not None:
        logprobs = {"content": [_chat_logprob(*position, request) for position in _positions(output)]}
    return {
        "index": output.index,
        "message": {"role": "assistant", "content": output.text},
        "logprobs": logprobs,
        "finish_reason": output.finish_reason,
    }


def _text_choice(request: BatchRequest, output: CompletionOutput) -> JsonObject:
    logprobs = None if output.logprobs is None else _text_logprobs(request, output)
    return {"index": output.index, "text": output.text, "logprobs": logprobs, "finish_reason": output.finish_reason}


def _positions(output: CompletionOutput) -> list[tuple[Logprob, list[Logprob]]]:
    """(the sampled token, the candidates by rank) at each position."""
    assert output.logprobs is not None
    pairs = zip(output.token_ids, output.logprobs, strict=True)
    return [(at[token], sorted(at.values(), key=lambda candidate: candidate.rank)) for token, at in pairs]


def _chat_logprob(sampled: Logprob, candidates: list[Logprob], request: BatchRequest) -> JsonObject:
    top = candidates[: request.params.logprobs]
    return _token_entry(sampled) | {"top_logprobs": [_token_entry(candidate) for candidate in top]}


def _token_entry(candidate: Logprob) -> JsonObject:
    token = candidate.decoded_token or ""
    return {"token": token, "logprob": _logprob(candidate), "bytes": list(token.encode("utf-8"))}


def _logprob(candidate: Logprob) -> float:
    return max(candidate.logprob, LEAST_LOGPROB)


def _text_logprobs(request: BatchRequest, output: CompletionOutput) -> JsonObject:
    positions = _positions(output)
    tokens = [sampled.decoded_token or "" for sampled, _ in positions]
    top = [
        {candidate.decoded_token or "": _logprob(candidate) for candidate in candidates[: request.params.logprobs]}
        for _, candidates in positions
    ]
    offsets = [0]
    for token in tokens[:-1]:
        offsets.append(offsets[-1] + len(token))
    return {
        "tokens": tokens,
        "token_logprobs": [_logprob(sampled) for sampled, _ in positions],
        "top_logprobs": top,
        "text_offset": offsets[: len(tokens)],
    }
