"""The tokenizer class, and the tokenizers of Hugging Face folders and of transformers objects."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import tokenizers
from tokenizers import decoders, models, pre_tokenizers, processors, trainers
from transformers import PreTrainedTokenizerFast

from jitney.errors import ModelLoadError, RequestError
from jitney.text.chat_template import ChatTemplate
from jitney.text.prompts import encode_conversation
from jitney.text.tokenizer import Tokenizer

TEMPLATE = (
    "{{ bos_token }}{% for m in messages %}[{{ m.role }}]{{ m.content }}{{ eos_token }}{% endfor %}"
    "{% if add_generation_prompt %}[assistant]{% endif %}"
)
MESSAGES = [{"role": "user", "content": "hello"}]


@pytest.fixture(scope="module")
def trained() -> tokenizers.Tokenizer:
    """A byte-level BPE trained on a few lines, with <s> put before every text."""
    backend = tokenizers.Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=320,
        special_tokens=["<s>", "</s>", "<|end|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    backend.train_from_iterator(["hello world, hello there", "日本語の日本"] * 3, trainer)
    backend.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 0)])
    return backend


def write_folder(folder: Path, backend: tokenizers.Tokenizer, **files: Any) -> Path:
    """tokenizer.json and `files`: name without .json -> content."""
    backend.save(str(folder / "tokenizer.json"))
    for name, content in files.items():
        (folder / f"{name}.json").write_text(json.dumps(content))
    return folder


def test_a_folder_gives_ids_text_and_special_tokens(tmp_path: Path, trained: tokenizers.Tokenizer) -> None:
    config = {"bos_token": "<s>", "eos_token": {"content": "</s>", "lstrip": False}, "chat_template": TEMPLATE}
    tokenizer = Tokenizer.from_folder(write_folder(tmp_path, trained, tokenizer_config=config))
    assert tokenizer.encode("hello world") == trained.encode("hello world").ids
    assert tokenizer.decode(tokenizer.encode("hello 日本語")) == "hello 日本語"
    assert (tokenizer.bos_token_id, tokenizer.eos_token_ids) == (0, (1,))
    assert tokenizer.vocab_size == trained.get_vocab_size()
    assert tokenizer.apply_chat_template(MESSAGES) == "<s>[user]hello</s>[assistant]"


def test_a_chat_prompt_has_one_begin_token(tmp_path: Path, trained: tokenizers.Tokenizer) -> None:
    config = {"bos_token": "<s>", "eos_token": "</s>", "chat_template": TEMPLATE}
    tokenizer = Tokenizer.from_folder(write_folder(tmp_path, trained, tokenizer_config=config))
    ids = list(encode_conversation(MESSAGES, tokenizer, True, {}).token_ids)
    assert ids.count(0) == 1
    assert ids == tokenizer.encode("[user]hello</s>[assistant]")


@pytest.mark.parametrize("name", ["messages", "add_generation_prompt", "self"])
def test_template_variables_that_redefine_an_argument_are_refused(trained: tokenizers.Tokenizer, name: str) -> None:
    tokenizer = Tokenizer(trained, chat_template=ChatTemplate(TEMPLATE))
    with pytest.raises(RequestError, match=name) as caught:
        encode_conversation(MESSAGES, tokenizer, True, {name: False})
    assert caught.value.field == "chat_template_kwargs"


@pytest.mark.parametrize(
    ("generation", "model", "expected"),
    [
        ({"eos_token_id": 2}, {"eos_token_id": 0}, (2, 1)),
        ({"eos_token_id": [2, 1]}, {}, (2, 1)),
        ({}, {"eos_token_id": [2]}, (2, 1)),
        ({}, {"text_config": {"eos_token_id": 2}}, (2, 1)),
        ({"eos_token_id": None}, {"eos_token_id": None}, (1,)),
    ],
)
def test_end_tokens_come_from_the_generation_config_and_the_tokenizer(
    tmp_path: Path,
    trained: tokenizers.Tokenizer,
    generation: dict[str, Any],
    model: dict[str, Any],
    expected: tuple[int, ...],
) -> None:
    files = {"tokenizer_config": {"eos_token": "</s>"}, "generation_config": generation, "config": model}
    assert Tokenizer.from_folder(write_folder(tmp_path, trained, **files)).eos_token_ids == expected


def test_special_tokens_map_and_a_template_file_are_read(tmp_path: Path, trained: tokenizers.Tokenizer) -> None:
    write_folder(tmp_path, trained, special_tokens_map={"bos_token": "<s>", "eos_token": "<|end|>"})
    (tmp_path / "chat_template.jinja").write_text(TEMPLATE)
    tokenizer = Tokenizer.from_folder(tmp_path)
    assert (tokenizer.bos_token_id, tokenizer.eos_token_ids) == (0, (2,))
    assert tokenizer.apply_chat_template(MESSAGES, add_generation_prompt=False) == "<s>[user]hello<|end|>"


def test_of_several_named_templates_the_default_is_taken(tmp_path: Path, trained: tokenizers.Tokenizer) -> None:
    named = [{"name": "tool_use", "template": "tools"}, {"name": "default", "template": TEMPLATE}]
    tokenizer = Tokenizer.from_folder(write_folder(tmp_path, trained, tokenizer_config={"chat_template": named}))
    assert tokenizer.apply_chat_template(MESSAGES) == "[user]hello[assistant]"


CONFIGS: list[dict[str, Any]] = [
    {},
    {"bos_token": "<s>", "eos_token": "</s>"},
    {"bos_token": "<s>", "eos_token": "</s>", "add_bos_token": False},  # tokenizer.json wins
    {"bos_token": "<s>", "eos_token": "</s>", "add_bos_token": True, "add_eos_token": True},
    {"eos_token": "hello"},
    {
        "added_tokens_decoder": {
            "320": {"content": "<extra>", "special": True, "normalized": False},
            "321": {"content": "plain", "special": False, "normalized": True},
        }
    },
]


@pytest.mark.parametrize("config", CONFIGS, ids=range(len(CONFIGS)))
def test_a_folder_encodes_and_decodes_as_transformers_does(
    tmp_path: Path, trained: tokenizers.Tokenizer, config: dict[str, Any]
) -> None:
    write_folder(tmp_path, trained, tokenizer_config={"tokenizer_class": "PreTrainedTokenizerFast", **config})
    ours, theirs = Tokenizer.from_folder(tmp_path), PreTrainedTokenizerFast.from_pretrained(tmp_path)
    for text in ("hello world", "<s>hello</s>", "a <extra> plain hello 日本語"):
        ids = ours.encode(text)
        assert ids == theirs(text)["input_ids"]
        assert ours.encode(text, add_special_tokens=False) == theirs(text, add_special_tokens=False)["input_ids"]
        for skip in (True, False):
            assert ours.decode(ids, skip) == theirs.decode(ids, skip_special_tokens=skip)


def test_truncation_and_padding_of_the_file_are_switched_off(tmp_path: Path, trained: tokenizers.Tokenizer) -> None:
    limited = tokenizers.Tokenizer.from_str(trained.to_str())
    limited.enable_truncation(3)
    limited.enable_padding(length=64)
    tokenizer = Tokenizer.from_folder(write_folder(tmp_path, limited))
    assert tokenizer.encode("hello world, hello there") == trained.encode("hello world, hello there").ids


def test_a_folder_without_tokenizer_json_falls_back_to_transformers(
    tmp_path: Path, trained: tokenizers.Tokenizer
) -> None:
    saved = json.loads(trained.to_str())["model"]
    (tmp_path / "vocab.json").write_text(json.dumps(saved["vocab"]))
    (tmp_path / "merges.txt").write_text("#version: 0.2\n" + "\n".join(" ".join(pair) for pair in saved["merges"]))
    config = {"tokenizer_class": "GPT2Tokenizer", "eos_token": "</s>", "bos_token": "<s>", "unk_token": "</s>"}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    (tmp_path / "generation_config.json").write_text(json.dumps({"eos_token_id": [2]}))
    tokenizer = Tokenizer.from_folder(tmp_path)
    assert tokenizer.encode("hello world") == trained.encode("hello world", add_special_tokens=False).ids
    assert tokenizer.eos_token_ids == (2, 1)


def test_folders_that_hold_no_tokenizer_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelLoadError, match=r"tokenizer\.json"):
        Tokenizer.from_folder(tmp_path)
    with pytest.raises(ModelLoadError, match="not a folder"):
        Tokenizer.from_folder(tmp_path / "missing")
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(ModelLoadError, match=r"tokenizer\.json"):
        Tokenizer.from_folder(tmp_path)


def test_a_broken_config_file_is_named(tmp_path: Path, trained: tokenizers.Tokenizer) -> None:
    write_folder(tmp_path, trained, tokenizer_config=["a list"])
    with pytest.raises(ModelLoadError, match=r"tokenizer_config\.json"):
        Tokenizer.from_folder(tmp_path)


def test_a_transformers_tokenizer_is_copied_and_left_as_it_is(trained: tokenizers.Tokenizer) -> None:
    make: Any = PreTrainedTokenizerFast
    theirs = make(tokenizer_object=trained, bos_token="<s>", eos_token="</s>", chat_template=TEMPLATE)
    theirs.backend_tokenizer.enable_truncation(3)
    before = theirs.backend_tokenizer.to_str()
    tokenizer = Tokenizer.from_transformers(theirs)
    tokenizer.backend.add_tokens(["brand new"])
    assert theirs.backend_tokenizer.to_str() == before
    assert tokenizer.encode("hello world, hello there") == trained.encode("hello world, hello there").ids
    assert (tokenizer.bos_token_id, tokenizer.eos_token_ids) == (0, (1,))
    assert tokenizer.apply_chat_template(MESSAGES) == "<s>[user]hello</s>[assistant]"


def test_a_tokenizer_without_the_tokenizers_library_behind_it_is_refused() -> None:
    with pytest.raises(ModelLoadError, match="PreTrainedTokenizerFast"):
        Tokenizer.from_transformers(object())


@pytest.mark.parametrize("prompt", [None, 7, ["a"], b"a", "lone \ud800 surrogate"])
def test_prompts_that_are_no_text_are_the_requests_fault(smollm2: Tokenizer, prompt: Any) -> None:
    with pytest.raises(RequestError) as caught:
        smollm2.encode(prompt)
    assert caught.value.field == "prompt"


def test_ids_outside_the_vocabulary_stand_for_no_text(smollm2: Tokenizer) -> None:
    assert smollm2.decode([6004, 49_152, 100_000]) == "hi"


def test_a_model_without_template_says_what_to_do(trained: tokenizers.Tokenizer) -> None:
    tokenizer = Tokenizer(tokenizers.Tokenizer.from_str(trained.to_str()), eos_token_ids=(1,), bos_token_id=0)
    with pytest.raises(RequestError, match="use generate") as caught:
        tokenizer.apply_chat_template(MESSAGES)
    assert caught.value.field == "messages"
    assert tokenizer.apply_chat_template(MESSAGES, chat_template=TEMPLATE) == "<s>[user]hello</s>[assistant]"


def test_the_text_layer_imports_neither_torch_nor_transformers(smollm2_path: Path) -> None:
    code = (
        "import sys; from jitney.text import output, folder_tokenizer, gguf_tokenizer; "
        f"output.Tokenizer.from_gguf({str(smollm2_path)!r}); "
        "sys.exit(any(name in sys.modules for name in ('torch', 'transformers')))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
