"""Rotary embeddings whose frequencies depend on the length of the sequence: up to where they can be served exactly.

transformers switches the frequencies of such models ("longrope", "dynamic") by the largest position in the *batch*, so
a request's result would depend on its batch mates and on how its prompt was split. Jitney keeps the frequencies that
hold up to the length the switch happens at, and serves the model up to that length, where both are the same.
"""

from collections.abc import Iterator
from typing import Any

import torch
from transformers import PreTrainedConfig, PreTrainedModel

from jitney.errors import ModelLoadError


def _switches(rope_type: str) -> bool:
    return rope_type == "longrope" or "dynamic" in rope_type


def context_limit(config: PreTrainedConfig) -> int:
    """Longest sequence in tokens that the model can serve exactly. Raises ModelLoadError if the config has none."""
    limit = getattr(config, "max_position_embeddings", None)
    if not isinstance(limit, int) or limit < 1:
        raise ModelLoadError(
            f"The model's config ({type(config).__name__}) gives max_position_embeddings={limit!r}, so the longest "
            "context it can serve is unknown. Set config.max_position_embeddings to the length it was trained for."
        )
    for parameters in _rope_parameter_sets(config):
        if parameters.get("rope_type") == "longrope":
            original = parameters.get("original_max_position_embeddings") or limit
            limit = min(limit, int(original))
    return limit


def _rope_parameter_sets(config: PreTrainedConfig) -> Iterator[dict[str, Any]]:
    parameters = getattr(config, "rope_parameters", None) or {}
    if "rope_type" in parameters:
        yield parameters
    else:
        yield from (each for each in parameters.values() if isinstance(each, dict))


def freeze_rope(model: PreTrainedModel) -> None:
    """Give the rotary modules of a structural copy their frequencies for short sequences, for good."""
    for module in model.modules():
        rope_type = getattr(module, "rope_type", None)
        if isinstance(rope_type, str) and _switches(rope_type):
            _freeze(module, "")
            setattr(module, "rope_type", "default")  # noqa: B010 (torch types module attributes as tensors)
        elif isinstance(rope_type, dict):
            for layer_type, one in rope_type.items():
                if _switches(one):
                    _freeze(module, f"{layer_type}_")
                    rope_type[layer_type] = "default"


def _freeze(module: torch.nn.Module, prefix: str) -> None:
    # A tensor of its own: the caller's model goes on switching the one that was shared.
    current: torch.Tensor = getattr(module, f"{prefix}inv_freq")
    original: torch.Tensor = getattr(module, f"{prefix}original_inv_freq")
    setattr(module, f"{prefix}inv_freq", original.to(current.device).clone())
