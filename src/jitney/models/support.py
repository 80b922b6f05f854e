"""Which transformers models a paged cache can serve exactly, judged by class and config; others are refused here."""

import inspect
from collections.abc import Iterator

import torch
from transformers import PreTrainedConfig, PreTrainedModel

from jitney.errors import ModelLoadError

SERVED_DTYPES = (torch.float32, torch.bfloat16, torch.float16)
SERVED_LAYER_TYPES = {"full_attention", "sliding_attention"}


def check_supported(model: PreTrainedModel) -> None:
    """Raises ModelLoadError with the reason if the model cannot be served. Reads only; runs nothing."""
    reason = next(_reasons(model), None)
    if reason is not None:
        raise ModelLoadError(
            f"{type(model).__name__} cannot be served: {reason}. Jitney serves decoder-only causal language models "
            "whose layers use full or sliding-window attention through transformers' attention interface."
        )


def _reasons(model: PreTrainedModel) -> Iterator[str]:
    yield from _config_reasons(model.config)
    yield from _class_reasons(model)
    yield from _weight_reasons(model)


def _config_reasons(config: PreTrainedConfig) -> Iterator[str]:
    if config.is_encoder_decoder:
        yield "it is an encoder-decoder model"
    if config.get_text_config() is not config:
        yield "it is a multimodal model; load its text model alone"
    layer_types = set(getattr(config, "layer_types", None) or ())
    if unknown := sorted(layer_types - SERVED_LAYER_TYPES):
        yield f"it has layers of type {', '.join(unknown)}, which keep no plain KV cache"
    if not layer_types and getattr(config, "attention_chunk_size", None) is not None:
        yield f"it uses chunked attention (attention_chunk_size={config.attention_chunk_size})"
    if not getattr(config, "is_causal", True) or getattr(config, "use_bidirectional_attention", False):
        yield "its attention is bidirectional"
    if getattr(config, "num_kv_shared_layers", 0):
        yield f"its last {config.num_kv_shared_layers} layers share the K and V of earlier ones"
    if getattr(config, "alibi", False):
        yield "it uses ALiBi position biases"


def _class_reasons(model: PreTrainedModel) -> Iterator[str]:
    if getattr(model, "_is_stateful", False):
        yield "it keeps a recurrent state (SSM or linear attention) besides a KV cache"
    if not getattr(model, "_supports_attention_backend", False):
        yield "its code does not go through transformers' attention interface (_supports_attention_backend is False)"
    if model.get_output_embeddings() is None:
        yield "it has no language-model head; load it with AutoModelForCausalLM"
    if "position_ids" not in inspect.signature(model.forward).parameters:
        yield "its forward takes no position_ids"


def _weight_reasons(model: PreTrainedModel) -> Iterator[str]:
    if model.dtype not in SERVED_DTYPES:
        names = ", ".join(str(dtype).removeprefix("torch.") for dtype in SERVED_DTYPES)
        yield f"its dtype is {str(model.dtype).removeprefix('torch.')}; convert it to one of {names}"
    devices = {str(parameter.device) for parameter in model.parameters()}
    if devices & {"meta"}:
        yield "some of its weights are on the meta device, that is, not loaded"
    if len(devices) > 1:
        yield f"its weights are spread over the devices {', '.join(sorted(devices))}; move it to one"
