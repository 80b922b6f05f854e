"""Strings to token ids and back: the one tokenizer class of Jitney, whatever the model came from.

Does not know where models are kept, and imports neither torch nor transformers (only the fallback of `from_folder`
for folders without a tokenizer.json loads transformers).
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import tokenizers

from jitney.errors import RequestError
from jitney.text.chat_template import ChatTemplate, Message
from jitney.text.detokenizer import Detokenizer, DetokenizerFactory


class Tokenizer:
    """A `tokenizers.Tokenizer` with what surrounds it: end-of-text ids, chat template, streaming.

    Safe to use from many threads once built.
    """

    def __init__(
        self,
        backend: tokenizers.Tokenizer,
        *,
        eos_token_ids: Sequence[int] = (),
        bos_token_id: int | None = None,
        chat_template: ChatTemplate | None = None,
    ) -> None:
        """
        Args:
            backend: owned from here on (its truncation and padding are switched off).
            eos_token_ids: every token that ends a text, most important first; repetitions are dropped.
            bos_token_id: the token that begins a text.
            chat_template: None if the model has none.
        """
        backend.no_truncation()
        backend.no_padding()
        self.backend = backend
        self.eos_token_ids: tuple[int, ...] = tuple(dict.fromkeys(eos_token_ids))
        self.bos_token_id = bos_token_id
        self.chat_template = chat_template
        self._detokenizers = DetokenizerFactory(backend)

    @classmethod
    def from_folder(cls, path: str | Path, *, trust_remote_code: bool = False) -> "Tokenizer":
        """The tokenizer of a Hugging Face model folder. Raises ModelLoadError."""
        from jitney.text.folder_tokenizer import load_folder_tokenizer

        return load_folder_tokenizer(Path(path), trust_remote_code)

    @classmethod
    def from_gguf(cls, path: str | Path) -> "Tokenizer":
        """The tokenizer that a GGUF file's metadata describe. Raises ModelLoadError."""
        from jitney.text.gguf_tokenizer import load_gguf_tokenizer

        return load_gguf_tokenizer(Path(path))

    @classmethod
    def from_transformers(cls, tokenizer: Any) -> "Tokenizer":
        """A copy of an already loaded `PreTrainedTokenizerFast`, which is left as it is. Raises ModelLoadError."""
        from jitney.text.folder_tokenizer import copy_transformers_tokenizer

        return copy_transformers_tokenizer(tokenizer)

    @property
    def vocab_size(self) -> int:
        """Tokens in the vocabulary, added ones included. The model's logits may have more rows (padding)."""
        return self.backend.get_vocab_size(with_added_tokens=True)

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        """Token ids of `text`; special tokens spelled out in it become their ids.

        Args:
            text: any string.
            add_special_tokens: add what the model expects around a text (usually a begin-of-text token, or nothing).

        Raises:
            RequestError: `text` is not a string, or holds lone surrogates; `.field` is "prompt".
        """
        if not isinstance(text, str):
            raise RequestError(f"the prompt must be a string, got {type(text).__name__}", "prompt")
        try:
            text.encode("utf-8")
        except UnicodeEncodeError as error:
            raise RequestError(f"the prompt is not valid Unicode: {error}; remove lone surrogates", "prompt") from error
        return self.backend.encode(text, add_special_tokens=add_special_tokens).ids

    def decode(self, token_ids: Sequence[int], skip_special_tokens: bool = True) -> str:
        """Text of `token_ids`. Bytes that are no valid UTF-8 become U+FFFD; ids not in the vocabulary, nothing."""
        return self.backend.decode(list(token_ids), skip_special_tokens=skip_special_tokens)

    def new_stream(self, skip_special_tokens: bool = True) -> Detokenizer:
        """A fresh detokeniser, whose deltas add up to what `decode` returns."""
        return self._detokenizers.new(skip_special_tokens)

    def apply_chat_template(
        self,
        messages: Sequence[Message],
        add_generation_prompt: bool = True,
        chat_template: str | None = None,
        **variables: Any,
    ) -> str:
        """The prompt for a conversation, as text (see `ChatTemplate.render`).

        Args:
            messages: dicts with `role` and `content`.
            add_generation_prompt: end with the opening of the assistant's turn.
            chat_template: jinja2 source to use instead of the model's own.
            variables: passed on to the template.

        Raises:
            RequestError: malformed messages, a failing template, or no template at all; `.field` is "messages".
        """
        template = self.chat_template
        if chat_template is not None:
            template = ChatTemplate(chat_template, template.special_tokens if template else self._special_tokens())
        if template is None:
            raise RequestError(
                "this model has no chat template; use generate with a prompt, or pass chat_template", "messages"
            )
        return template.render(messages, add_generation_prompt, **variables)

    def _special_tokens(self) -> dict[str, str]:
        ids = {"bos_token": self.bos_token_id, "eos_token": next(iter(self.eos_token_ids), None)}
        pieces = {name: self.backend.id_to_token(token) for name, token in ids.items() if token is not None}
        return {name: piece for name, piece in pieces.items() if piece is not None}
