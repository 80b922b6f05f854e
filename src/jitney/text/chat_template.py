"""Chat messages to a prompt, by the model's own jinja2 template. Knows messages and strings, no tokens.

Templates come with models, so they are untrusted code: they run in jinja2's immutable sandbox, with the names and
white-space rules that transformers gives them. A template is compiled when it is first used, so a broken one does not
keep a model from loading.
"""

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from functools import cached_property
from typing import Any, NoReturn

import jinja2
import jinja2.ext
import jinja2.sandbox

from jitney.errors import RequestError

Message = Mapping[str, Any]


class ChatTemplate:
    """A chat template and the special tokens it may name (`bos_token`, `eos_token`, ...)."""

    def __init__(self, source: str, special_tokens: Mapping[str, str] | None = None) -> None:
        self.source = source
        self.special_tokens = dict(special_tokens or {})

    def render(self, messages: Sequence[Message], add_generation_prompt: bool = True, **variables: Any) -> str:
        """The prompt for `messages`.

        Args:
            messages: dicts with `role` and `content` (a string, or a list of {"type": "text", "text": ...} parts).
            add_generation_prompt: end with the opening of the assistant's turn.
            variables: passed on to the template (`tools`, `documents`, `enable_thinking`, ...).

        Raises:
            RequestError: a message is malformed, or the template refuses or fails; `.field` is "messages".
        """
        names = {"tools": None, "documents": None, **self.special_tokens, **variables}
        names.update(messages=check_messages(messages), add_generation_prompt=add_generation_prompt)
        try:
            return self._compiled.render(names)
        except RequestError:
            raise
        except Exception as error:  # whatever a template does wrong is the fault of this request alone
            raise RequestError(f"the model's chat template failed on these messages: {error}", "messages") from error

    @cached_property
    def _compiled(self) -> jinja2.Template:
        environment = jinja2.sandbox.ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=[_GenerationTag, jinja2.ext.loopcontrols]
        )
        environment.filters["tojson"] = _to_json
        environment.globals["raise_exception"] = _raise_exception
        environment.globals["strftime_now"] = _strftime_now
        try:
            return environment.from_string(self.source)
        except jinja2.TemplateSyntaxError as error:
            raise RequestError(
                f"the model's chat template is not valid jinja2 (line {error.lineno}: {error.message}); "
                "pass another template, or use generate with a prompt of your own",
                "messages",
            ) from error


def check_messages(messages: object) -> list[dict[str, Any]]:
    """Messages as templates expect them: plain dicts, text parts joined by newlines. Raises RequestError."""
    if isinstance(messages, str | bytes | Mapping) or not isinstance(messages, Sequence):
        raise RequestError(f"messages must be a list of messages, got {type(messages).__name__}", "messages")
    if not messages:
        raise RequestError("messages is empty; give at least one message", "messages")
    return [_check_message(index, message) for index, message in enumerate(messages)]


def _check_message(index: int, message: object) -> dict[str, Any]:
    where = f"messages[{index}]"
    if not isinstance(message, Mapping):
        raise RequestError(f"{where} must be a dict with role and content, got {message!r}", "messages")
    if not isinstance(message.get("role"), str) or not message["role"]:
        raise RequestError(f"{where}.role must be a non-empty string, got {message.get('role')!r}", "messages")
    content = message.get("content")
    if content is None and message.get("tool_calls"):
        return {**message, "content": ""}
    return {**message, "content": _text_of(f"{where}.content", content)}


def _text_of(where: str, content: object) -> str:
    if isinstance(content, str):
        return content
    if isinstance(content, Mapping) or not isinstance(content, Sequence):
        raise RequestError(f"{where} must be a string or a list of text parts, got {content!r}", "messages")
    return "\n".join(_text_of_part(f"{where}[{index}]", part) for index, part in enumerate(content))


def _text_of_part(where: str, part: object) -> str:
    if not isinstance(part, Mapping):
        raise RequestError(f'{where} must be {{"type": "text", "text": ...}}, got {part!r}', "messages")
    if part.get("type") not in ("text", "input_text", "output_text"):
        raise RequestError(f"{where}.type is {part.get('type')!r}; only text can be served, drop this part", "messages")
    if not isinstance(part.get("text"), str):
        raise RequestError(f"{where}.text must be a string, got {part.get('text')!r}", "messages")
    return str(part["text"])


class _GenerationTag(jinja2.ext.Extension):
    """`{% generation %} ... {% endgeneration %}` marks assistant text for training; here it is transparent."""

    tags = {"generation"}  # noqa: RUF012 - the name and type jinja2 prescribes

    def parse(self, parser: jinja2.parser.Parser) -> list[jinja2.nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Plain JSON: jinja2's own filter would escape HTML characters."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _raise_exception(message: str) -> NoReturn:
    raise jinja2.TemplateError(message)


def _strftime_now(format: str) -> str:
    return datetime.now().strftime(format)
