"""A second handle on a transformers model that shares its weights, so that nothing of the caller's is ever changed."""

import copy
from typing import Any

from transformers import PreTrainedModel


def structural_copy(model: PreTrainedModel) -> PreTrainedModel:
    """A copy of the module tree and its configs in which every parameter and buffer is the very same tensor.

    Weights that the caller updates in place are seen by the copy; switches set on the copy (evaluation mode, attention)
    are not seen by the caller.
    """
    memo: dict[int, Any] = {id(tensor): tensor for tensor in model.parameters()}
    memo.update((id(tensor), tensor) for tensor in model.buffers())
    return copy.deepcopy(model, memo)


def set_attention(model: PreTrainedModel, name: str) -> None:
    """Choose the attention function of a structural copy by its name in transformers' registry."""
    for module in model.modules():
        config = getattr(module, "config", None)
        if config is not None and hasattr(config, "_attn_implementation"):
            config._attn_implementation = name
