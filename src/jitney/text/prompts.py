"""What a caller hands in, as token ids: strings, token ids, conversations. Knows no engine.

A fault in one prompt raises RequestError from `encode_*`, so that it costs that prompt only; a fault in the call as a
whole raises from `list_of_*` and `spread`, before anything has started.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypedDict, TypeVar

from jitney.errors import RequestError
from jitney.text.tokenizer import Tokenizer

T = TypeVar("T")


class TextPrompt(TypedDict):
    prompt: str


class TokensPrompt(TypedDict):
    prompt_token_ids: Sequence[int]


_TEMPLATE_ARGUMENTS = {"self", "messages", "add_generation_prompt", "chat_template"}

Prompt = str | TextPrompt | TokensPrompt
Conversation = Sequence[Mapping[str, Any]]


@dataclass(frozen=True, slots=True)
class EncodedPrompt:
    """A prompt for the engine. Token ids are not checked yet."""

    text: str | None
    token_ids: Sequence[int]


def encode_prompt(prompt: object, tokenizer: Tokenizer | None) -> EncodedPrompt:
    """A string, {"prompt": string} or {"prompt_token_ids": [...]}. Raises RequestError, `.field` is "prompt"."""
    if isinstance(prompt, Mapping):
        if list(prompt) == ["prompt_token_ids"]:
            return EncodedPrompt(None, prompt["prompt_token_ids"])
        if list(prompt) != ["prompt"]:
            raise RequestError(
                f'a prompt dict must have the one key "prompt" or "prompt_token_ids", got {sorted(map(str, prompt))}',
                "prompt",
            )
        prompt = prompt["prompt"]
    if not isinstance(prompt, str):
        hint = '; wrap token ids as {"prompt_token_ids": [...]}' if isinstance(prompt, Sequence) else ""
        raise RequestError(f"a prompt must be a string or a dict, got {type(prompt).__name__}{hint}", "prompt")
    return EncodedPrompt(prompt, _needed(tokenizer).encode(prompt))


def encode_conversation(
    messages: Conversation, tokenizer: Tokenizer | None, add_generation_prompt: bool, variables: Mapping[str, Any]
) -> EncodedPrompt:
    """A conversation through the model's chat template, which writes the begin-of-text token itself.

    Raises:
        RequestError: the messages are malformed or the template refuses them (`.field` is "messages"), or `variables`
            are no names for it (`.field` is "chat_template_kwargs").
    """
    _check_variables(variables)
    text = _needed(tokenizer).apply_chat_template(messages, add_generation_prompt, **variables)
    return EncodedPrompt(text, _needed(tokenizer).encode(text, add_special_tokens=False))


def _check_variables(variables: object) -> None:
    field = "chat_template_kwargs"
    if not isinstance(variables, Mapping) or not all(isinstance(name, str) for name in variables):
        raise RequestError(f"{field} must be a dict with names for keys, got {variables!r}", field)
    taken = sorted(_TEMPLATE_ARGUMENTS & set(variables))
    if taken:
        raise RequestError(f"{field} must not name {', '.join(taken)}: the call gives them itself", field)


def list_of_prompts(prompts: object) -> list[object]:
    """One prompt or several, as a list. Raises RequestError if it is neither."""
    if isinstance(prompts, str | Mapping):
        return [prompts]
    if not isinstance(prompts, Sequence) or isinstance(prompts, bytes):
        kind = type(prompts).__name__
        raise RequestError(f"prompts must be a string, a dict or a list of them, got {kind}", "prompt")
    if len(prompts) and all(hasattr(item, "__index__") for item in prompts):
        raise RequestError(
            'prompts is a list of numbers; give token ids as {"prompt_token_ids": [...]}, or a list of such dicts',
            "prompt",
        )
    return list(prompts)


def list_of_conversations(messages: object) -> list[Any]:
    """One conversation (a list of dicts) or several, as a list. Raises RequestError if it is neither."""
    if not isinstance(messages, Sequence) or isinstance(messages, str | bytes) or not len(messages):
        raise RequestError("messages must be a list of messages, or a list of such lists, and not empty", "messages")
    return [messages] if isinstance(messages[0], Mapping) else list(messages)


def spread(name: str, value: T | Sequence[T], count: int) -> list[T]:
    """One value for each of `count` prompts: the same for all, or a list with one for each."""
    if not isinstance(value, list | tuple):
        return [value] * count  # type: ignore[list-item]  # a T, which may itself be a Sequence in theory only
    if len(value) != count:
        raise RequestError(f"{name} has {len(value)} entries for {count} prompts; give one, or one for each", name)
    return list(value)


def _needed(tokenizer: Tokenizer | None) -> Tokenizer:
    if tokenizer is None:
        raise RequestError(
            "there is no tokenizer: pass tokenizer= when the model is loaded, or give token ids as "
            '{"prompt_token_ids": [...]}',
            "prompt",
        )
    return tokenizer
