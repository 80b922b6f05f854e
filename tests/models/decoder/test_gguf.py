"""A GGUF file through the fused decoder gives what the same file gives through transformers."""

from pathlib import Path

import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType
from tests.models.decoder.families import SMALL, TORCH, from_config, rope
from tests.models.driver import Sequence, generate, make_batch, nan_cache
from tests.models.gguf_writer import write_gguf
from tests.models.tiny import tiny_model
from transformers import Gemma2Config, Gemma3TextConfig, LlamaConfig, PreTrainedModel

from jitney.errors import ModelLoadError
from jitney.models.base import PagedModel
from jitney.models.decoder.model import FusedDecoder
from jitney.models.embedded import embedded_model_path
from jitney.models.gguf_file import read_gguf
from jitney.models.gguf_weights import load_gguf
from jitney.models.load import load_model
from jitney.models.transformers_model import TransformersModel

IDS = [7, 200, 31, 9, 9, 124, 65, 3, 18, 77, 140, 6]
BLOCKS = SMALL | {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2}
"""Rows of whole quantisation blocks."""

MODELS = {
    "llama": lambda: tiny_model("llama"),
    "llama_tied": lambda: tiny_model("llama_tied"),
    "llama_biases": lambda: from_config(LlamaConfig(**SMALL, attention_bias=True)),
    "llama_linear_rope": lambda: from_config(LlamaConfig(**SMALL, rope_parameters=rope("linear", factor=2.0))),
    "qwen2": lambda: tiny_model("qwen2"),
    "qwen3": lambda: tiny_model("qwen3"),
    "gemma2": lambda: from_config(
        Gemma2Config(**SMALL, head_dim=16, query_pre_attn_scalar=16, sliding_window=5, attn_logit_softcapping=3.0)
    ),
    "gemma3": lambda: from_config(
        Gemma3TextConfig(**SMALL | {"num_hidden_layers": 7}, head_dim=16, query_pre_attn_scalar=16, sliding_window=5)
    ),
}


def logits(model: PagedModel) -> torch.Tensor:
    sequence = Sequence(IDS, len(IDS), blocks=[2, 1, 3])
    batch = make_batch([(sequence, len(IDS))], 4)
    return model.forward(torch.tensor(IDS), batch, nan_cache(model.spec, 4, 4), torch.arange(len(IDS)))


def both(path: Path) -> tuple[FusedDecoder, TransformersModel]:
    decoder = load_model(path, kernels=TORCH).model
    assert isinstance(decoder, FusedDecoder)
    return decoder, TransformersModel(load_gguf(read_gguf(path)))


@pytest.mark.parametrize("family", MODELS)
def test_a_file_gives_the_logits_of_its_transformers_load(family: str, tmp_path: Path) -> None:
    write_gguf(MODELS[family](), tmp_path / "m.gguf")
    decoder, other = both(tmp_path / "m.gguf")
    torch.testing.assert_close(logits(decoder), logits(other), rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("kind", [GGMLQuantizationType.Q8_0, GGMLQuantizationType.F16, GGMLQuantizationType.Q4_1])
def test_quantised_tensors_are_dequantised_alike(kind: GGMLQuantizationType, tmp_path: Path) -> None:
    write_gguf(from_config(LlamaConfig(**BLOCKS)), tmp_path / "m.gguf", kind)
    decoder, other = both(tmp_path / "m.gguf")
    torch.testing.assert_close(logits(decoder), logits(other), rtol=2e-5, atol=2e-5)


def test_llama_3_rope_factors_are_applied(tmp_path: Path) -> None:
    factors = np.linspace(1, 8, 6)
    write_gguf(tiny_model("llama"), tmp_path / "m.gguf", rope_factors=factors)
    decoder, other = both(tmp_path / "m.gguf")
    torch.testing.assert_close(logits(decoder), logits(other), rtol=2e-5, atol=2e-5)
    write_gguf(tiny_model("llama"), tmp_path / "plain.gguf")
    assert not torch.allclose(logits(decoder), logits(both(tmp_path / "plain.gguf")[0]), atol=1e-3)


def test_rope_factors_of_another_head_size_are_refused(tmp_path: Path) -> None:
    write_gguf(tiny_model("llama"), tmp_path / "m.gguf", rope_factors=np.ones(5))
    with pytest.raises(ModelLoadError, match="5 factors for 6 frequencies"):
        load_model(tmp_path / "m.gguf")


def without_up_proj() -> PreTrainedModel:
    model = tiny_model("llama")
    del model.model.layers[1].mlp.up_proj
    return model


def test_a_missing_tensor_is_named(tmp_path: Path) -> None:
    write_gguf(without_up_proj(), tmp_path / "m.gguf")
    with pytest.raises(ModelLoadError, match=r"layers\.1\.mlp\.up_proj\.weight is missing"):
        load_model(tmp_path / "m.gguf")


def test_damaged_headers_end_in_a_clear_error_or_load(tmp_path: Path) -> None:
    whole, damaged = tmp_path / "m.gguf", tmp_path / "damaged.gguf"
    write_gguf(tiny_model("llama"), whole)
    data = whole.read_bytes()
    chance = np.random.default_rng(1)
    for _ in range(100):
        changed = bytearray(data)
        changed[int(chance.integers(0, 2500))] = int(chance.integers(0, 256))
        damaged.write_bytes(changed)
        try:
            load_model(damaged)
        except ModelLoadError:
            continue


def test_an_architecture_without_a_fused_decoder_runs_through_transformers(tmp_path: Path) -> None:
    write_gguf(tiny_model("phi3"), tmp_path / "m.gguf")
    assert isinstance(load_model(tmp_path / "m.gguf").model, TransformersModel)


def test_the_embedded_model_gives_the_tokens_of_its_transformers_load() -> None:
    try:
        path = embedded_model_path(download=False)
    except ModelLoadError as error:
        pytest.skip(str(error))
    decoder, other = both(path)
    assert decoder.spec == other.spec
    prompts = [[1, 4093, 198, 2683, 418], [504], list(range(100, 140))]
    assert generate(decoder, prompts, 6, 16) == generate(other, prompts, 6, 16)
