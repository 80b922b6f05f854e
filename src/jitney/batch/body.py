"""The body of an OpenAI request to a prompt and SamplingParams. Knows no engine.

Accepted are OpenAI's parameters and vLLM's extra ones, that is every field of SamplingParams under its own name.
What is not known is an error, never ignored; null means the default.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from jitney.batch.failure import LineError
from jitney.errors import RequestError
from jitney.sampling_params import SamplingParams

CHAT = "/v1/chat/completions"
COMPLETIONS = "/v1/completions"

COMPLETIONS_MAX_TOKENS = 16
"""OpenAI's default for /v1/completions. A chat answer goes on until it ends or the model is full."""

_SAMPLING = {f.name for f in fields(SamplingParams)} - {"max_tokens", "logprobs", "prompt_logprobs"}
_COMMON = _SAMPLING | {"model", "max_tokens", "logprobs", "priority", "cache_salt"}
_PARAMETERS = {
    CHAT: _COMMON | {"messages", "max_completion_tokens", "top_logprobs", "chat_template_kwargs"},
    COMPLETIONS: _COMMON | {"prompt"},
}
_NEUTRAL: dict[str, tuple[Any, ...]] = {
    "stream": (False,),
    "echo": (False,),
    "best_of": (1,),
    "suffix": ("",),
    "response_format": ({"type": "text"},),
    "tools": ([],),
    "tool_choice": ("none",),
}
"""Parameters that Jitney does not have, with the values that ask for nothing."""
_LABELS = {"user": str, "metadata": dict, "store": bool}
"""Parameters for OpenAI's own bookkeeping: they never change an answer."""


@dataclass(frozen=True, slots=True)
class BatchRequest:
    """What a line asks for. One of `messages` (chat) and `prompt` (completions: text or token ids) is set."""

    url: str
    params: SamplingParams
    model: str | None = None
    messages: list[Any] | None = None
    prompt: str | dict[str, list[int]] | None = None
    priority: int = 0
    cache_salt: str = ""
    chat_template_kwargs: dict[str, Any] = field(default_factory=dict)


def parse_body(url: object, body: Mapping[str, Any]) -> BatchRequest:
    """The request of a body. Raises RequestError whose `.field` names the parameter."""
    if not isinstance(url, str) or url not in _PARAMETERS:
        raise LineError("unsupported_url", f"url must be {CHAT} or {COMPLETIONS}, got {url!r}", "url")
    given = {name: value for name, value in body.items() if value is not None}
    _check_names(url, given)
    for name, kind in (("model", str), ("cache_salt", str), ("priority", int), ("chat_template_kwargs", dict)):
        if name in given:
            _check_type(name, given[name], kind)
    others: dict[str, Any] = {
        name: given[name] for name in ("model", "priority", "cache_salt", "chat_template_kwargs") if name in given
    }
    if url == CHAT:
        others["messages"] = _messages(given)
        max_tokens, logprobs = _chat_max_tokens(given), _chat_logprobs(given)
    else:
        others["prompt"] = _prompt(given)
        max_tokens, logprobs = given.get("max_tokens", COMPLETIONS_MAX_TOKENS), given.get("logprobs")
    return BatchRequest(url, _sampling_params(given, max_tokens, logprobs), **others)


def _check_names(url: str, given: Mapping[str, Any]) -> None:
    for name, value in given.items():
        if name in _PARAMETERS[url]:
            continue
        if name in _LABELS:
            _check_type(name, value, _LABELS[name])
        elif name not in _NEUTRAL:
            elsewhere = next((other for other, names in _PARAMETERS.items() if name in names), None)
            hint = f"it belongs to {elsewhere}" if elsewhere else "remove it"
            raise LineError("unknown_parameter", f"{name!r} is not a parameter of {url}; {hint}", name)
        elif value not in _NEUTRAL[name]:
            raise LineError("unsupported_parameter", f"{name}={value!r} is not supported here; remove it", name)


def _check_type(name: str, value: object, kind: type) -> None:
    if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
        what = {str: "a string", int: "an integer", bool: "true or false", dict: "an object", list: "a list"}[kind]
        raise LineError("invalid_type", f"{name} must be {what}, got {value!r}", name)


def _messages(given: Mapping[str, Any]) -> list[Any]:
    if "messages" not in given:
        raise LineError("missing_field", f"messages is missing; {CHAT} needs it", "messages")
    _check_type("messages", given["messages"], list)
    return list(given["messages"])


def _prompt(given: Mapping[str, Any]) -> str | dict[str, list[int]]:
    prompt = given.get("prompt")
    if prompt is None:
        raise LineError("missing_field", f"prompt is missing; {COMPLETIONS} needs it", "prompt")
    if isinstance(prompt, str):
        return prompt
    if isinstance(prompt, list) and all(type(token) is int for token in prompt):
        return {"prompt_token_ids": prompt}
    if isinstance(prompt, list) and all(isinstance(item, str | list) for item in prompt):
        raise LineError("unsupported_parameter", "prompt must be one prompt; give each prompt its own line", "prompt")
    raise LineError("invalid_type", f"prompt must be a string or a list of token ids, got {prompt!r}", "prompt")


def _chat_max_tokens(given: Mapping[str, Any]) -> int | None:
    old, new = given.get("max_tokens"), given.get("max_completion_tokens")
    if old is not None and new is not None and old != new:
        raise LineError(
            "invalid_value",
            f"max_tokens={old!r} and max_completion_tokens={new!r} are two names of one limit; keep one of them",
            "max_completion_tokens",
        )
    return new if new is not None else old


def _chat_logprobs(given: Mapping[str, Any]) -> int | None:
    wanted, top = given.get("logprobs", False), given.get("top_logprobs")
    _check_type("logprobs", wanted, bool)
    if wanted:
        return top if top is not None else 0
    if top is not None:
        raise LineError("invalid_value", f"top_logprobs={top!r} needs logprobs: true", "top_logprobs")
    return None


def _sampling_params(given: Mapping[str, Any], max_tokens: Any, logprobs: Any) -> SamplingParams:
    values = {name: value for name, value in given.items() if name in _SAMPLING}
    if isinstance(values.get("logit_bias"), dict):
        values["logit_bias"] = {_token_id(key): bias for key, bias in values["logit_bias"].items()}
    try:
        return SamplingParams(**values, max_tokens=max_tokens, logprobs=logprobs)
    except RequestError as error:
        raise _in_the_callers_words(error, given) from error


def _in_the_callers_words(error: RequestError, given: Mapping[str, Any]) -> RequestError:
    """Chat requests know two parameters by other names than SamplingParams."""
    for ours, theirs in (("max_tokens", "max_completion_tokens"), ("logprobs", "top_logprobs")):
        if error.field == ours and theirs in given:
            return LineError("invalid_value", str(error).replace(ours, theirs), theirs)
    return error


def _token_id(key: str) -> int:
    """JSON has only strings for keys."""
    if not key.isascii() or not key.isdigit() or len(key) > 10:
        raise LineError("invalid_value", f"logit_bias must map token ids to numbers, got the key {key!r}", "logit_bias")
    return int(key)
