"""Any causal language model of transformers over a ragged batch and a paged KV cache, through its attention interface.

The caller's model is never changed: Jitney works on a structural copy that shares every parameter and buffer, so
weights updated in place are seen at once. Knows transformers; knows nothing of requests, slots or steps.
"""

import inspect
from dataclasses import dataclass
from typing import Any, cast

import torch
from transformers import PreTrainedModel
from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from jitney.kernels.attention import AttentionBackend, AttentionStep, TorchAttention
from jitney.kernels.paged_attention import write_kv
from jitney.kernels.paged_kv import PagedBatch, PagedKVCache
from jitney.models.base import LayerSpec, ModelSpec
from jitney.models.probe import probe_layers
from jitney.models.rope import context_limit, freeze_rope
from jitney.models.structural_copy import set_attention, structural_copy
from jitney.models.support import check_supported

ATTENTION = "jitney_paged"
"""Name under which transformers knows our attention."""


@dataclass(slots=True)
class PagedStep:
    """What the attention of every layer needs in one step; travels through the model as the keyword `paged`."""

    batch: PagedBatch
    cache: PagedKVCache
    layers: tuple[LayerSpec, ...]
    attention: AttentionStep


class TransformersModel:
    """PagedModel over a transformers causal LM.

    Raises ModelLoadError, with the reason, where the model has layers that a paged cache cannot serve exactly.
    `spec.max_position_embeddings` is the length up to which results are exact (see `context_limit`).
    `attention` may be replaced between steps.
    """

    spec: ModelSpec
    device: torch.device
    attention: AttentionBackend

    def __init__(self, hf_model: PreTrainedModel, attention: AttentionBackend | None = None) -> None:
        check_supported(hf_model)
        self._model = structural_copy(hf_model)
        self._model.eval()
        self.attention = attention or TorchAttention()
        freeze_rope(self._model)
        self.device = next(self._model.parameters()).device
        layers, vocab_size = probe_layers(self._model, self.device)
        set_attention(self._model, ATTENTION)
        self._keeps_logits = "logits_to_keep" in inspect.signature(self._model.forward).parameters
        config = hf_model.config
        self.spec = ModelSpec(
            name=str(getattr(config, "name_or_path", "") or type(hf_model).__name__),
            architecture=type(hf_model).__name__,
            vocab_size=vocab_size,
            max_position_embeddings=context_limit(config),
            dtype=hf_model.dtype,
            layers=layers,
            num_parameters=sum(parameter.numel() for parameter in hf_model.parameters()),
        )

    @property
    def way(self) -> str:
        """What computes it, in words."""
        return f"transformers with {self.attention.name} attention"

    @property
    def supports_graphs(self) -> bool:
        """Whether a step can be captured in a CUDA graph."""
        return self.attention.supports_graphs

    @torch.inference_mode()
    def forward(
        self, token_ids: torch.Tensor, batch: PagedBatch, cache: PagedKVCache, logits_index: torch.Tensor
    ) -> torch.Tensor:
        """One step; see `PagedModel.forward`."""
        options: dict[str, Any] = {"logits_to_keep": logits_index} if self._keeps_logits else {}
        output = self._model(
            input_ids=token_ids.unsqueeze(0),
            position_ids=batch.positions.unsqueeze(0),
            use_cache=False,
            paged=PagedStep(batch, cache, self.spec.layers, self.attention.begin(batch, cache.block_size)),
            **options,
        )
        logits: torch.Tensor = output.logits[0]
        return (logits if self._keeps_logits else logits[logits_index]).float()


def _attend(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    *,
    scaling: float | None = None,
    softcap: float | None = None,
    s_aux: torch.Tensor | None = None,
    paged: PagedStep,
    **_: object,
) -> tuple[torch.Tensor, None]:
    """The attention function that transformers calls: query [1, Hq, T, D], key and value [1, Hkv, T, D or Dv].

    Returns [1, T, Hq, Dv]. K and V share one head size in the cache; the narrower of the two is padded with zeros,
    which changes neither scores nor sums. The other keywords were checked when the model was probed.
    """
    index = cast(int, module.layer_idx)
    layer = paged.layers[index]
    key_cache, value_cache = paged.cache.keys[index], paged.cache.values[index]
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    value_dim = value.shape[-1]
    rows = [_padded(states[0].transpose(0, 1), layer.head_dim) for states in (query, key, value)]
    write_kv(rows[1], rows[2], key_cache, value_cache, paged.batch)
    output = paged.attention.attend(
        rows[0], key_cache, value_cache, scale, sliding_window=layer.sliding_window, softcap=softcap, sinks=s_aux
    )
    return output[..., :value_dim].unsqueeze(0), None


def _padded(states: torch.Tensor, head_dim: int) -> torch.Tensor:
    missing = head_dim - states.shape[-1]
    return torch.nn.functional.pad(states, (0, missing)) if missing else states


def _no_mask(**_: object) -> None:
    """The block tables and positions say what a token may see."""


def _register() -> None:
    if ATTENTION not in ALL_ATTENTION_FUNCTIONS:
        ALL_ATTENTION_FUNCTIONS.register(ATTENTION, _attend)
        ALL_MASK_ATTENTION_FUNCTIONS.register(ATTENTION, _no_mask)


_register()
