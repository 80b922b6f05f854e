"""Rotary position embeddings of the fused decoder: frequencies as transformers computes them, and their tables.

Only frequencies that do not depend on a sequence's length are known here; the others go the transformers way.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from transformers import PreTrainedConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

KNOWN_TYPES = ("default", "linear", "llama3", "yarn")


@dataclass(frozen=True, slots=True)
class Rope:
    """The rotation of a layer's Q and K."""

    frequencies: tuple[float, ...]
    """Angle per position of each pair of values, float32. All zero: a layer without rotation."""
    scaling: float = 1.0
    """Factor on cosine and sine (yarn's attention factor)."""

    @classmethod
    def none(cls, head_dim: int) -> "Rope":
        """No rotation at all."""
        return cls((0.0,) * (head_dim // 2))

    def divided_by(self, factors: torch.Tensor) -> "Rope":
        """Each frequency divided by its factor, [head_dim / 2] float32 (how GGUF files carry Llama 3.1's scaling)."""
        return Rope(tuple((torch.tensor(self.frequencies) / factors).tolist()), self.scaling)

    def tables(self, max_positions: int, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
        """(cos, sin), [max_positions, head_dim / 2] float32 each."""
        frequencies = torch.tensor(self.frequencies, device=device)
        angles = torch.arange(max_positions, device=device).float()[:, None] * frequencies
        return angles.cos() * self.scaling, angles.sin() * self.scaling


def read_rope(config: PreTrainedConfig, head_dim: int, layer_type: str | None = None) -> Rope | None:
    """The rotation that a config describes, or None if it is of a kind that is not known exactly.

    `layer_type`: which of the config's rotations, where it has one per type of layer.
    """
    parameters: Any = config.rope_parameters
    if layer_type is not None and isinstance(parameters, Mapping):
        parameters = parameters.get(layer_type)
    if not isinstance(parameters, Mapping) or parameters.get("rope_type") not in KNOWN_TYPES:
        return None
    # transformers' classes differ in whether they honour a partial rotation.
    if parameters.get("partial_rotary_factor") not in (None, 1.0) or head_dim % 2:
        return None
    if parameters["rope_type"] == "default":
        exponents = torch.arange(0, head_dim, 2, dtype=torch.float) / head_dim
        frequencies, scaling = 1.0 / (parameters["rope_theta"] ** exponents), 1.0
    else:
        options = {} if layer_type is None else {"layer_type": layer_type}
        frequencies, scaling = ROPE_INIT_FUNCTIONS[parameters["rope_type"]](config, torch.device("cpu"), **options)
    if len(frequencies) != head_dim // 2:
        return None
    return Rope(tuple(frequencies.float().tolist()), float(scaling))
