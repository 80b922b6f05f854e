"""GGUF files written from tiny models come back as the same models; damaged and foreign files are refused."""

from pathlib import Path

import gguf
import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType, GGUFWriter
from tests.models.gguf_writer import write_gguf
from tests.models.tiny import tiny_model
from transformers import (
    AutoModelForCausalLM,
    Gemma2Config,
    Gemma3TextConfig,
    LlamaConfig,
    Phi3Config,
    PreTrainedConfig,
    PreTrainedModel,
)

from jitney.errors import ModelLoadError
from jitney.models.gguf_file import read_gguf
from jitney.models.gguf_weights import load_gguf as load_gguf_file
from jitney.models.transformers_model import TransformersModel

IDS = torch.tensor([[7, 200, 31, 9, 9, 124, 65, 3, 18, 77, 140, 6]])
SMALL = {
    "vocab_size": 256,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "initializer_range": 0.2,
    "pad_token_id": 0,
}


def load_gguf(path: Path, dtype: torch.dtype = torch.float32) -> PreTrainedModel:
    return load_gguf_file(read_gguf(path), dtype)


def from_config(config: PreTrainedConfig) -> PreTrainedModel:
    torch.manual_seed(0)
    model: PreTrainedModel = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 1:
                parameter.add_(torch.randn_like(parameter) * 0.3)
    return model.eval()


MODELS = {
    "llama": lambda: tiny_model("llama"),
    "llama_tied": lambda: tiny_model("llama_tied"),
    "llama_linear_rope": lambda: from_config(
        LlamaConfig(**SMALL, rope_parameters={"rope_type": "linear", "rope_theta": 5e4, "factor": 2.0})
    ),
    "qwen2": lambda: tiny_model("qwen2"),
    "qwen3": lambda: tiny_model("qwen3"),
    "gemma2": lambda: from_config(
        Gemma2Config(**SMALL, head_dim=16, query_pre_attn_scalar=16, sliding_window=5, attn_logit_softcapping=3.0)
    ),
    "gemma3": lambda: from_config(
        Gemma3TextConfig(**SMALL | {"num_hidden_layers": 7}, head_dim=16, query_pre_attn_scalar=16, sliding_window=5)
    ),
    "phi3": lambda: from_config(Phi3Config(**SMALL, original_max_position_embeddings=512)),
}


def logits(model: PreTrainedModel) -> torch.Tensor:
    with torch.inference_mode():
        return model(IDS).logits


@pytest.mark.parametrize("family", MODELS)
def test_a_float32_file_gives_the_same_logits(family: str, tmp_path: Path) -> None:
    model = MODELS[family]()
    write_gguf(model, tmp_path / "m.gguf")
    loaded = load_gguf(tmp_path / "m.gguf")
    assert not any(tensor.is_meta for tensor in [*loaded.parameters(), *loaded.buffers()])
    torch.testing.assert_close(logits(loaded), logits(model), rtol=1e-4, atol=1e-4)
    TransformersModel(loaded)


def test_a_tied_head_shares_the_embedding(tmp_path: Path) -> None:
    write_gguf(tiny_model("llama_tied"), tmp_path / "m.gguf")
    loaded = load_gguf(tmp_path / "m.gguf")
    assert loaded.get_output_embeddings().weight is loaded.get_input_embeddings().weight


@pytest.mark.parametrize("kind", [GGMLQuantizationType.Q8_0, GGMLQuantizationType.F16, GGMLQuantizationType.Q4_1])
def test_quantised_tensors_are_dequantised_to_the_values_they_stand_for(
    kind: GGMLQuantizationType, tmp_path: Path
) -> None:
    model = from_config(LlamaConfig(**SMALL))
    write_gguf(model, tmp_path / "m.gguf", kind)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                stored = gguf.quants.quantize(parameter.numpy(), kind)
                parameter.copy_(torch.from_numpy(gguf.quants.dequantize(stored, kind).copy()))
    torch.testing.assert_close(logits(load_gguf(tmp_path / "m.gguf")), logits(model), rtol=1e-4, atol=1e-4)


def test_llama_3_rope_factors_are_applied(tmp_path: Path) -> None:
    rope = {
        "rope_type": "llama3",
        "rope_theta": 1e4,
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 32,
    }
    model = from_config(LlamaConfig(**SMALL, rope_parameters=rope))
    plain = 1e4 ** (-torch.arange(0, 16, 2) / 16)
    factors = (plain / model.model.rotary_emb.inv_freq).numpy()
    assert factors.max() > 1
    write_gguf(model, tmp_path / "m.gguf", rope_factors=factors)
    torch.testing.assert_close(logits(load_gguf(tmp_path / "m.gguf")), logits(model), rtol=1e-4, atol=1e-4)


def test_the_chosen_dtype_is_used(tmp_path: Path) -> None:
    write_gguf(tiny_model("llama"), tmp_path / "m.gguf")
    assert {p.dtype for p in load_gguf(tmp_path / "m.gguf", torch.bfloat16).parameters()} == {torch.bfloat16}


def test_metadata_agrees_with_the_gguf_packages_own_reader(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    writer = GGUFWriter(path, "llama")
    writer.add_array("tokens", ["a", "日本", "🚌"])
    writer.add_array("scores", [0.5, -1.0])
    writer.add_bool("flag", True)
    writer.add_uint16("short", 65535)
    writer.add_float64("pi", 3.14)
    writer.add_string("text", "héllo")
    writer.add_tensor("half", np.arange(6, dtype=np.float16).reshape(2, 3))
    for write in (writer.write_header_to_file, writer.write_kv_data_to_file, writer.write_tensors_to_file):
        write()
    writer.close()
    file = read_gguf(path)
    for name, field in gguf.GGUFReader(path).fields.items():
        if not name.startswith("GGUF."):
            value = file.metadata[name]
            assert (value.tolist() if isinstance(value, np.ndarray) else value) == field.contents()
    assert file.tensors["half"].dequantize().tolist() == [[0, 1, 2], [3, 4, 5]]


def test_a_file_cut_anywhere_is_refused_as_truncated(tmp_path: Path) -> None:
    whole, cut = tmp_path / "m.gguf", tmp_path / "cut.gguf"
    write_gguf(tiny_model("llama"), whole)
    data = whole.read_bytes()
    for size in [3, 4, 10, 24, 60, 200, 700, 1500, len(data) // 2, len(data) - 1]:
        cut.write_bytes(data[:size])
        with pytest.raises(ModelLoadError, match=r"truncated|not a GGUF"):
            load_gguf(cut)


def test_damaged_headers_end_in_a_clear_error_or_load(tmp_path: Path) -> None:
    whole, damaged = tmp_path / "m.gguf", tmp_path / "damaged.gguf"
    write_gguf(tiny_model("llama"), whole)
    data = whole.read_bytes()
    chance = np.random.default_rng(0)
    for _ in range(150):
        changed = bytearray(data)
        changed[int(chance.integers(0, 2500))] = int(chance.integers(0, 256))
        damaged.write_bytes(changed)
        try:
            load_gguf(damaged)
        except ModelLoadError:
            continue


@pytest.mark.parametrize("content", [b"", b"GGUF", b"<html>not found</html>", b"GGUF\x07\x00\x00\x00" + b"\x00" * 16])
def test_what_is_no_gguf_file_is_refused(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "m.gguf").write_bytes(content)
    with pytest.raises(ModelLoadError, match=r"m\.gguf"):
        load_gguf(tmp_path / "m.gguf")


def test_unknown_architectures_are_refused_with_the_list_of_known_ones(tmp_path: Path) -> None:
    writer = GGUFWriter(tmp_path / "m.gguf", "mamba")
    for write in (writer.write_header_to_file, writer.write_kv_data_to_file, writer.write_tensors_to_file):
        write()
    writer.close()
    with pytest.raises(ModelLoadError, match=r"'mamba'.*gemma2, gemma3, llama, phi3, qwen2, qwen3"):
        load_gguf(tmp_path / "m.gguf")


def test_a_missing_tensor_is_named(tmp_path: Path) -> None:
    model = tiny_model("llama")
    del model.model.layers[1].mlp.up_proj
    write_gguf(model, tmp_path / "m.gguf")
    with pytest.raises(ModelLoadError, match=r"layers\.1\.mlp\.up_proj"):
        load_gguf(tmp_path / "m.gguf")
