"""Checkpoints of every shape go into the merged weights exactly once, and bad ones are refused by name."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from tests.models.decoder.families import TORCH, fused, model_of
from tests.models.decoder.memory import TensorBytes
from tests.models.gguf_writer import write_gguf

from jitney.errors import ModelLoadError
from jitney.models.decoder.model import FusedDecoder
from jitney.models.decoder.weights import DecoderWeights
from jitney.models.load import load_model


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    model_of("llama_biases").save_pretrained(tmp_path / "model")
    return tmp_path / "model"


def weights_of(name: Path) -> DecoderWeights:
    decoder = load_model(name, kernels=TORCH).model
    assert isinstance(decoder, FusedDecoder)
    return decoder._weights


def change(folder: Path, edit: Callable[[dict[str, torch.Tensor]], object]) -> None:
    tensors = load_file(folder / "model.safetensors")
    edit(tensors)
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})


def same(one: DecoderWeights, other: DecoderWeights) -> bool:
    return all(torch.equal(a, b) for a, b in zip(one.tensors(), other.tensors(), strict=True))


def test_q_k_v_and_gate_up_are_merged_in_order(folder: Path) -> None:
    model, layer = model_of("llama_biases"), weights_of(folder).layers[1]
    attention, mlp = model.model.layers[1].self_attn, model.model.layers[1].mlp
    rows = [attention.q_proj, attention.k_proj, attention.v_proj]
    assert torch.equal(layer.qkv, torch.cat([each.weight for each in rows]))
    assert layer.qkv_bias is not None and torch.equal(layer.qkv_bias, torch.cat([each.bias for each in rows]))
    assert torch.equal(layer.gate_up, torch.cat([mlp.gate_proj.weight, mlp.up_proj.weight]))
    assert layer.gate_up_bias is not None
    assert torch.equal(layer.gate_up_bias, torch.cat([mlp.gate_proj.bias, mlp.up_proj.bias]))


def test_shards_with_an_index_are_the_same_model(folder: Path, tmp_path: Path) -> None:
    model_of("llama_biases").save_pretrained(tmp_path / "shards", max_shard_size="40KB")
    assert len(list((tmp_path / "shards").glob("model-*.safetensors"))) > 3
    assert same(weights_of(tmp_path / "shards"), weights_of(folder))


def test_a_shard_that_lacks_what_its_index_promises_is_refused(tmp_path: Path) -> None:
    model_of("llama").save_pretrained(tmp_path, max_shard_size="40KB")
    index = json.loads((tmp_path / "model.safetensors.index.json").read_text())
    name, file_name = next(iter(index["weight_map"].items()))
    tensors = load_file(tmp_path / file_name)
    del tensors[name]
    save_file(tensors, tmp_path / file_name, {"format": "pt"})
    with pytest.raises(ModelLoadError, match=name):
        load_model(tmp_path)


def test_an_index_may_not_name_files_elsewhere(tmp_path: Path) -> None:
    model_of("llama").save_pretrained(tmp_path, max_shard_size="40KB")
    index = json.loads((tmp_path / "model.safetensors.index.json").read_text())
    index["weight_map"]["lm_head.weight"] = "../model.safetensors"
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(ModelLoadError, match=r"\.\./model\.safetensors"):
        load_model(tmp_path)


BAD: dict[str, tuple[Callable[[dict[str, torch.Tensor]], object], str]] = {
    "missing": (
        lambda tensors: tensors.pop("model.layers.1.self_attn.k_proj.bias"),
        r"layers\.1\.self_attn\.k_proj\.bias is missing",
    ),
    "left over": (
        lambda tensors: tensors.update({"model.layers.3.mlp.up_proj.weight": torch.ones(64, 48)}),
        r"layers\.3\.mlp\.up_proj\.weight is \(64, 48\), expected no such tensor",
    ),
    "wrong shape": (
        lambda tensors: tensors.update({"model.norm.weight": torch.ones(47)}),
        r"model\.norm\.weight is \(47,\), expected \(48,\)",
    ),
    "integers": (
        lambda tensors: tensors.update({"model.norm.weight": torch.ones(48, dtype=torch.int8)}),
        r"model\.norm\.weight is stored as I8",
    ),
}


@pytest.mark.parametrize("kind", BAD)
def test_a_checkpoint_that_does_not_fit_is_refused_by_name(kind: str, folder: Path) -> None:
    edit, message = BAD[kind]
    change(folder, edit)
    with pytest.raises(ModelLoadError, match=message):
        load_model(folder)


def test_rotary_frequencies_of_old_checkpoints_are_left_out(folder: Path) -> None:
    expected = weights_of(folder)
    change(folder, lambda tensors: tensors.update({"model.layers.0.self_attn.rotary_emb.inv_freq": torch.ones(6)}))
    assert same(weights_of(folder), expected)


def test_a_tied_head_is_the_embedding_itself(tmp_path: Path) -> None:
    model_of("llama_tied").save_pretrained(tmp_path)
    weights = weights_of(tmp_path)
    assert weights.head is weights.embedding


def test_a_tied_tensor_may_be_stored_under_its_other_name(tmp_path: Path) -> None:
    model_of("llama_tied").save_pretrained(tmp_path)
    expected = weights_of(tmp_path)
    change(tmp_path, lambda tensors: tensors.update({"lm_head.weight": tensors.pop("model.embed_tokens.weight")}))
    assert same(weights_of(tmp_path), expected)


def test_a_head_stored_beside_the_embedding_is_read_even_if_the_config_ties_them(tmp_path: Path) -> None:
    model_of("llama_tied").save_pretrained(tmp_path)
    change(tmp_path, lambda tensors: tensors.update({"lm_head.weight": tensors["model.embed_tokens.weight"] * 2}))
    weights = weights_of(tmp_path)
    assert torch.equal(weights.head, weights.embedding * 2)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("form", ["one file", "shards", "gguf"])
def test_loading_never_holds_more_than_the_model_and_one_tensor(form: str, dtype: str, tmp_path: Path) -> None:
    model = model_of("llama")
    if form == "gguf":
        write_gguf(model, tmp_path / "m.gguf")
    else:
        model.save_pretrained(tmp_path, max_shard_size="40KB" if form == "shards" else "1GB")
    with TensorBytes() as memory:
        decoder = load_model(tmp_path, dtype, kernels=TORCH).model  # type: ignore[arg-type]
    assert isinstance(decoder, FusedDecoder)
    own = sum(tensor.nbytes for tensor in decoder._weights.tensors())
    largest = max(parameter.nbytes for parameter in model.parameters())
    assert own <= memory.peak <= own + 1.1 * largest
    assert 1.1 * largest < own / 2, "else this test could not tell a second copy"


def test_a_gguf_file_and_a_folder_of_one_model_fill_the_same_weights(tmp_path: Path) -> None:
    model = model_of("qwen3")
    write_gguf(model, tmp_path / "m.gguf")
    decoder = fused(model, tmp_path / "folder")
    assert same(weights_of(tmp_path / "m.gguf"), decoder._weights)
