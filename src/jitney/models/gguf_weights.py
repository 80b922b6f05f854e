"""A GGUF file as a model: config, tensors under their Hugging Face names, conversions undone; and a transformers model
built from them.

llama.cpp changes some tensors when it converts a model: it reorders the rows of Q and K for its kind of rotary
embedding (architecture llama) and stores Gemma's norm weights plus one. Both are turned back here.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
import transformers
from numpy.typing import NDArray
from transformers import PreTrainedConfig, PreTrainedModel
from transformers.utils import logging as transformers_logging

from jitney.errors import ModelLoadError
from jitney.models.decoder.config import DecoderConfig
from jitney.models.decoder.families import decoder_config
from jitney.models.gguf_config import gguf_config
from jitney.models.gguf_file import GGUFFile

_CLASSES = {
    "llama": "LlamaForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
    "gemma2": "Gemma2ForCausalLM",
    "gemma3": "Gemma3ForCausalLM",
    "phi3": "Phi3ForCausalLM",
}
_MODEL_NAMES = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}
_LAYER_NAMES = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_qkv": "self_attn.qkv_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_GEMMA_LAYER_NAMES = _LAYER_NAMES | {
    "ffn_norm": "pre_feedforward_layernorm",
    "post_attention_norm": "post_attention_layernorm",
    "post_ffw_norm": "post_feedforward_layernorm",
}
_LAYER_NAMES_BY_ARCHITECTURE = {
    "gemma2": _GEMMA_LAYER_NAMES,
    "gemma3": _GEMMA_LAYER_NAMES,
    "phi3": _LAYER_NAMES | {"ffn_up": "mlp.gate_up_proj"},
}
_ROPE_TENSORS = ("rope_freqs.weight", "rope_factors_short.weight", "rope_factors_long.weight")
"""Not weights: they go into the rotary embedding."""


class GGUFTensors:
    """A GGUF file as a source of tensors (see `TensorSource`): dequantised one by one, to float32 on the CPU."""

    def __init__(self, file: GGUFFile, config: PreTrainedConfig) -> None:
        self.origin = str(file.path)
        self._file = file
        self._config = config

    def shapes(self) -> Mapping[str, tuple[int, ...]]:
        """Every tensor's shape under its transformers name. Raises ModelLoadError for a name that is not known."""
        return {_hf_name(self._file, name): self._file.tensors[name].shape for name in self._names()}

    def tensors(self) -> Iterator[tuple[str, torch.Tensor]]:
        """The tensors under their transformers names, with llama.cpp's changes undone."""
        for name in self._names():
            yield _hf_name(self._file, name), _restored(self._file, self._config, name)

    def _names(self) -> list[str]:
        return [name for name in self._file.tensors if name not in _ROPE_TENSORS]


def gguf_decoder(file: GGUFFile) -> tuple[DecoderConfig, GGUFTensors] | None:
    """What the fused decoder needs to load the file; None if it does not know the model exactly.

    Raises ModelLoadError if the file's architecture is not served at all.
    """
    with _consistent(file):
        config = gguf_config(file)
        decoder = decoder_config(config)
        factors = _rope_factors(file)
        if decoder is None or (factors is not None and len(decoder.ropes) > 1):
            return None
        if factors is not None:
            (rope,) = decoder.ropes
            _check_rope_factors(file, factors, len(rope.frequencies))
            decoder = decoder.with_rope_factors(factors)
        return decoder, GGUFTensors(file, config)


def load_gguf(file: GGUFFile, dtype: torch.dtype = torch.float32) -> PreTrainedModel:
    """The model in a GGUF file, dequantised to `dtype`, on the CPU, in evaluation mode.

    Raises ModelLoadError if its architecture or tensors are not what is served.
    """
    with _consistent(file):
        return _build(file, dtype)


@contextmanager
def _consistent(file: GGUFFile) -> Iterator[None]:
    """Numbers in a damaged header can break anything that is built from them: any error is one of the file."""
    try:
        yield
    except ModelLoadError:
        raise
    except Exception as error:
        raise ModelLoadError(
            f"The contents of {file.path} do not fit together ({type(error).__name__}: {error}); the file is damaged, "
            "or made by a converter that differs from llama.cpp's. Fetch it again, or use safetensors."
        ) from error


def _build(file: GGUFFile, dtype: torch.dtype) -> PreTrainedModel:
    config = gguf_config(file)
    model_class: Any = getattr(transformers, _CLASSES[file.architecture])
    source = GGUFTensors(file, config)
    _check_shapes(source, model_class, config)
    state = {name: tensor.to(dtype) for name, tensor in source.tensors()}
    with _quiet():
        # Takes the tensors as they are, without a copy, ties the head and computes what no file stores.
        model: PreTrainedModel = model_class.from_pretrained(None, config=config, state_dict=state, dtype=dtype)
    _apply_rope_factors(file, model)
    model.config.name_or_path = str(file.path)
    model.eval()
    return model


def _check_shapes(source: GGUFTensors, model_class: type[PreTrainedModel], config: PreTrainedConfig) -> None:
    """Raises ModelLoadError unless the file holds every tensor of the model, in its shape, and nothing else."""
    with torch.device("meta"):
        wanted = {name: tuple(tensor.shape) for name, tensor in model_class(config).state_dict().items()}
    if config.tie_word_embeddings:
        wanted.pop("lm_head.weight", None)
    found = source.shapes()
    wrong = [
        f"{name} is {found.get(name, 'missing')}, expected {wanted.get(name, 'no such tensor')}"
        for name in sorted(wanted.keys() | found.keys())
        if wanted.get(name) != found.get(name)
    ]
    if wrong:
        raise ModelLoadError(
            f"{len(wrong)} tensors of {source.origin} do not fit a {model_class.__name__} ({'; '.join(wrong[:3])}); "
            "the file is damaged, or made by a converter that differs from llama.cpp's. Fetch it again, or use "
            "safetensors."
        )


def _restored(file: GGUFFile, config: PreTrainedConfig, name: str) -> torch.Tensor:
    """One tensor as transformers has it, float32."""
    values = file.tensors[name].dequantize()
    if file.architecture == "llama" and ".attn_q." in name:
        values = _restore_rope_order(values, config.num_attention_heads)
    elif file.architecture == "llama" and ".attn_k." in name:
        values = _restore_rope_order(values, config.num_key_value_heads)
    elif file.architecture in ("gemma2", "gemma3") and name.endswith("norm.weight"):
        values = values - 1
    # Tensors stored as float32 are still views of the mapped file, which must not be written to.
    owned = values if values.flags.writeable else values.copy()
    return torch.from_numpy(np.ascontiguousarray(owned))


def _hf_name(file: GGUFFile, name: str) -> str:
    """blk.7.attn_q.weight -> model.layers.7.self_attn.q_proj.weight"""
    stem, _, kind = name.rpartition(".")
    if stem in _MODEL_NAMES:
        return f"{_MODEL_NAMES[stem]}.{kind}"
    parts = stem.split(".")
    names = _LAYER_NAMES_BY_ARCHITECTURE.get(file.architecture, _LAYER_NAMES)
    if len(parts) == 3 and parts[0] == "blk" and parts[2] in names:
        return f"model.layers.{parts[1]}.{names[parts[2]]}.{kind}"
    raise ModelLoadError(
        f"{file.path} holds the tensor {name}, which a plain {file.architecture} model has not; use safetensors."
    )


def _restore_rope_order(values: NDArray[np.float32], num_heads: int) -> NDArray[np.float32]:
    """Undo llama.cpp's interleaving of the two halves of each head: [heads * head_dim] or [heads * head_dim, in]."""
    half = values.shape[0] // num_heads // 2
    return values.reshape(num_heads, half, 2, *values.shape[1:]).swapaxes(1, 2).reshape(values.shape)


def _rope_factors(file: GGUFFile) -> torch.Tensor | None:
    """Llama 3.1 and later: each rotary frequency is divided by a factor that the file holds as a tensor."""
    stored = file.tensors.get("rope_freqs.weight")
    return None if stored is None else torch.from_numpy(stored.dequantize().copy())


def _check_rope_factors(file: GGUFFile, factors: torch.Tensor, num_frequencies: int) -> None:
    if factors.shape != (num_frequencies,):
        raise ModelLoadError(f"{file.path}: rope_freqs has {len(factors)} factors for {num_frequencies} frequencies.")


def _apply_rope_factors(file: GGUFFile, model: PreTrainedModel) -> None:
    factors = _rope_factors(file)
    if factors is None:
        return
    rotary = model.get_submodule("model.rotary_emb")
    for name in ("inv_freq", "original_inv_freq"):
        frequencies: torch.Tensor = getattr(rotary, name)
        _check_rope_factors(file, factors, len(frequencies))
        frequencies.div_(factors)


@contextmanager
def _quiet() -> Iterator[None]:
    """Without transformers' progress bar over tensors that are in memory already."""
    shown = transformers_logging.is_progress_bar_enabled()
    transformers_logging.disable_progress_bar()
    try:
        yield
    finally:
        if shown:
            transformers_logging.enable_progress_bar()
