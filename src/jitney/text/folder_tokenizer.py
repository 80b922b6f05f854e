"""Tokenizers of Hugging Face folders, and of tokenizer objects of transformers.

Reads the same files with the same precedence as transformers 5 does, without importing it, as long as the folder has
a tokenizer.json (which then also decides about begin- and end-of-text tokens, whatever `add_bos_token` says). Without
one, transformers is asked to convert whatever there is.
"""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import tokenizers
from tokenizers import AddedToken

from jitney.errors import ModelLoadError
from jitney.text.chat_template import ChatTemplate
from jitney.text.tokenizer import Tokenizer

_SPECIAL_TOKEN_NAMES = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")


def load_folder_tokenizer(folder: Path, trust_remote_code: bool) -> Tokenizer:
    """See `Tokenizer.from_folder`."""
    if not folder.is_dir():
        raise ModelLoadError(f"{folder} is not a folder; name the folder that holds the model's files")
    if not (folder / "tokenizer.json").is_file():
        return _load_with_transformers(folder, trust_remote_code)
    backend = _read_backend(folder / "tokenizer.json")
    config = _read_json(folder / "tokenizer_config.json")
    special_tokens = _special_tokens(_read_json(folder / "special_tokens_map.json") | config)
    _add_missing_tokens(backend, config, special_tokens)
    source = _template_source(folder, config)
    return Tokenizer(
        backend,
        eos_token_ids=[*_model_eos_ids(folder), *_ids(backend, special_tokens.get("eos_token"))],
        bos_token_id=next(iter(_ids(backend, special_tokens.get("bos_token"))), None),
        chat_template=ChatTemplate(source, special_tokens) if source else None,
    )


def copy_transformers_tokenizer(tokenizer: Any) -> Tokenizer:
    """See `Tokenizer.from_transformers`."""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if not isinstance(backend, tokenizers.Tokenizer):
        raise ModelLoadError(
            f"{type(tokenizer).__name__} is not backed by the tokenizers library; pass a PreTrainedTokenizerFast"
        )
    try:
        copy = tokenizers.Tokenizer.from_str(backend.to_str())
    except Exception as error:  # the binding raises a bare Exception for parts written in Python
        raise ModelLoadError(f"the tokenizer cannot be copied: {error}") from error
    copy.encode_special_tokens = backend.encode_special_tokens
    special_tokens = {
        name: str(token) for name in _SPECIAL_TOKEN_NAMES if (token := getattr(tokenizer, name, None)) is not None
    }
    source = _default_template(getattr(tokenizer, "chat_template", None))
    return Tokenizer(
        copy,
        eos_token_ids=_ids(copy, special_tokens.get("eos_token")),
        bos_token_id=next(iter(_ids(copy, special_tokens.get("bos_token"))), None),
        chat_template=ChatTemplate(source, special_tokens) if source else None,
    )


def _load_with_transformers(folder: Path, trust_remote_code: bool) -> Tokenizer:
    from transformers import AutoTokenizer

    try:
        loaded = AutoTokenizer.from_pretrained(str(folder), trust_remote_code=trust_remote_code)
    except Exception as error:  # transformers raises many kinds, also from the model's own code
        raise ModelLoadError(
            f"{folder} has no tokenizer.json, and transformers cannot load its tokenizer either: {error}"
        ) from error
    converted = copy_transformers_tokenizer(loaded)
    return Tokenizer(
        converted.backend,
        eos_token_ids=[*_model_eos_ids(folder), *converted.eos_token_ids],
        bos_token_id=converted.bos_token_id,
        chat_template=converted.chat_template,
    )


def _read_backend(path: Path) -> tokenizers.Tokenizer:
    try:
        return tokenizers.Tokenizer.from_file(str(path))
    except Exception as error:  # the binding raises a bare Exception
        raise ModelLoadError(f"{path} cannot be read: {error}") from error


def _read_json(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ModelLoadError(f"{path} is not valid JSON: {error}") from error
    if not isinstance(content, dict):
        raise ModelLoadError(f"{path} must hold a JSON object, got {type(content).__name__}")
    return content


def _special_tokens(config: Mapping[str, Any]) -> dict[str, str]:
    """Name -> text of the special tokens; each stands in the files as a string or as {"content": string, ...}."""
    found = {}
    for name in _SPECIAL_TOKEN_NAMES:
        token = config.get(name)
        content = token.get("content") if isinstance(token, Mapping) else token
        if isinstance(content, str):
            found[name] = content
    return found


def _add_missing_tokens(
    backend: tokenizers.Tokenizer, config: Mapping[str, Any], special_tokens: Mapping[str, str]
) -> None:
    """Added tokens that only tokenizer_config.json lists, and special tokens of the vocabulary not marked as such."""
    known = {token.content for token in backend.get_added_tokens_decoder().values()}
    listed = config.get("added_tokens_decoder") or {}
    for _, flags in sorted(listed.items(), key=lambda item: int(item[0])):
        if flags["content"] not in known:
            backend.add_tokens([AddedToken(**{key: value for key, value in flags.items() if key != "__type"})])
            known.add(flags["content"])
    in_vocabulary = [piece for piece in special_tokens.values() if backend.token_to_id(piece) is not None]
    backend.add_special_tokens([piece for piece in dict.fromkeys(in_vocabulary) if piece not in known])


def _template_source(folder: Path, config: Mapping[str, Any]) -> str | None:
    path = folder / "chat_template.jinja"
    if path.is_file():
        return path.read_text(encoding="utf-8")
    template = _read_json(folder / "chat_template.json").get("chat_template")
    return _default_template(config.get("chat_template") if template is None else template)


def _default_template(template: Any) -> str | None:
    """A model may bring several named templates, as a dict or as a list of {"name", "template"}."""
    if isinstance(template, list):
        template = {entry["name"]: entry["template"] for entry in template}
    if isinstance(template, Mapping):
        template = template.get("default")
    return template if isinstance(template, str) else None


def _model_eos_ids(folder: Path) -> list[int]:
    """End-of-text ids of generation_config.json, else of config.json."""
    config = _read_json(folder / "config.json")
    text_config = config.get("text_config")
    candidates = [_read_json(folder / "generation_config.json"), config]
    if isinstance(text_config, dict):
        candidates.append(text_config)
    for candidate in candidates:
        if (ids := list(_flatten(candidate.get("eos_token_id")))) != []:
            return ids
    return []


def _flatten(eos_token_id: Any) -> Iterator[int]:
    """eos_token_id is written as null, a number, or a list of numbers."""
    for token_id in eos_token_id if isinstance(eos_token_id, list) else [eos_token_id]:
        if isinstance(token_id, int) and not isinstance(token_id, bool):
            yield token_id


def _ids(backend: tokenizers.Tokenizer, piece: str | None) -> list[int]:
    token_id = None if piece is None else backend.token_to_id(piece)
    return [] if token_id is None else [token_id]
