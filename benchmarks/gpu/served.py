"""Random models made on the device, and engines around them. The only file here that knows how an engine is built."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from time import monotonic
from typing import Any

import numpy as np
import torch
from transformers import AutoModelForCausalLM, LlamaConfig, PreTrainedModel

from gpu.scale import Scale
from jitney.build import engine_around
from jitney.config import EngineConfig
from jitney.engine.limits import make_requests
from jitney.engine.loop import Engine
from jitney.models.base import PagedModel
from jitney.models.decoder.families import decoder_config
from jitney.models.decoder.load import KernelSettings, load_decoder
from jitney.models.decoder.model import FusedDecoder
from jitney.sampling_params import SamplingParams


def random_model(shape: dict[str, Any], dtype: str, device: str) -> PreTrainedModel:
    """A Llama of the shape with random weights, made where it stays; the same weights at every call on one device."""
    torch.manual_seed(0)
    config = LlamaConfig(**shape, bos_token_id=1, eos_token_id=2, pad_token_id=0)
    with torch.device(device):
        model: PreTrainedModel = AutoModelForCausalLM.from_config(config, dtype=getattr(torch, dtype))
    model.eval()
    return model


class _Weights:
    """A transformers model's weights as the fused decoder reads them (its TensorSource)."""

    origin = "random weights"

    def __init__(self, model: PreTrainedModel) -> None:
        self._tensors: dict[str, torch.Tensor] = dict(model.state_dict())
        if model.config.tie_word_embeddings:
            self._tensors.pop("lm_head.weight", None)

    def shapes(self) -> dict[str, tuple[int, ...]]:
        return {name: tuple(tensor.shape) for name, tensor in self._tensors.items()}

    def tensors(self) -> Iterator[tuple[str, torch.Tensor]]:
        return iter(self._tensors.items())


def fused_model(model: PreTrainedModel, block_size: int = 16) -> FusedDecoder:
    """The same model with the same weights as a fused decoder (a copy)."""
    config = decoder_config(model.config)
    assert config is not None, "the shapes measured here are those of known families"
    kernels = KernelSettings(block_size=block_size, cpu_kernels="torch")
    decoder = load_decoder(config, _Weights(model), model.dtype, model.device, kernels)
    assert isinstance(decoder, FusedDecoder)
    return decoder


@dataclass(frozen=True, slots=True)
class Served:
    """A model on a device, and an engine's worth of memory, graphs and buffers."""

    built: Engine

    @classmethod
    def build(cls, model: PagedModel, **settings: Any) -> "Served":
        return cls(engine_around(model, (), EngineConfig(**settings)))

    def engine(self, **settings: Any) -> Engine:
        """An idle engine with other settings on the same device: weights, KV memory and graphs are those built once.

        Only one such engine may have work at a time, for their block pools know nothing of each other. Seats, depth
        and tokens in a step may be lower than those the device was built with, not higher.
        """
        return Engine(replace(self.built.config, **settings), self.built.limits, self.built.device)

    def close(self) -> None:
        self.built.close()


class Bench:
    """What parts share: the scale, the device's name, and the timed model, built and warmed up when first needed."""

    def __init__(self, scale: Scale, device: str) -> None:
        self.scale = scale
        self.device = device
        self.build_s = 0.0

    @cached_property
    def model(self) -> PreTrainedModel:
        """The timed model as transformers knows it."""
        return random_model(self.scale.shape, self.scale.dtype, self.device)

    @cached_property
    def served(self) -> Served:
        scale, start = self.scale, monotonic()
        served = Served.build(
            fused_model(self.model, scale.block_size),
            device=self.device,
            max_model_len=scale.max_model_len,
            max_num_seqs=scale.num_seats,
            max_num_batched_tokens=scale.max_num_batched_tokens,
            block_size=scale.block_size,
            num_kv_blocks=scale.num_kv_blocks,
        )
        _warm_up(served.engine(), scale)
        self.build_s = monotonic() - start
        return served


def _warm_up(engine: Engine, scale: Scale) -> None:
    """A full prefill step and a few decode steps, so that nothing is compiled or set up while it is timed."""
    params = SamplingParams(temperature=0.0, max_tokens=8, ignore_eos=True)
    random = np.random.default_rng(1)
    for index in range(scale.num_requests):
        prompt = random.integers(3, engine.limits.vocab_size, scale.prompt_len, dtype=np.int32)
        engine.add(*make_requests(f"warm-up {index}", prompt, params, engine.limits, engine_seed=0))
    engine.run_until_idle()


def floor_bytes(model: PreTrainedModel) -> tuple[int, int]:
    """(bytes of weights that a decode step must read, bytes of K and V for each token of context).

    Of the embedding a step reads only its tokens' rows; it counts where it is the output layer too.
    """
    config: Any = model.config
    weights = {id(parameter): parameter for parameter in model.parameters()}
    embedding, head = model.get_input_embeddings().weight, model.get_output_embeddings().weight
    if embedding is not head:
        weights.pop(id(embedding))
    size = model.dtype.itemsize
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    kv = 2 * config.num_hidden_layers * config.num_key_value_heads * head_dim * size
    return sum(parameter.numel() for parameter in weights.values()) * size, kv
