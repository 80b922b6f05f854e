"""What a model's attention layers really do, learned by running two tokens through it before the first request.

transformers builds a mask for each kind of layer and hands it down to the attention function. The probe registers a
mask function that returns, instead of a mask, a one-element tensor naming the window, and an attention function that
notes what arrives and computes nothing. So each layer's window and shapes are what the model's code uses, whatever
its config says. No weights are copied and nothing is kept but the notes.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from transformers import PreTrainedModel
from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from jitney.errors import ModelLoadError
from jitney.models.base import LayerSpec
from jitney.models.structural_copy import set_attention

PROBE = "jitney_probe"
_TOKENS = 2
_FAR = 1_000_003
"""A distance that no full-attention layer may cut off."""

_FULL, _UNKNOWN = 0, -1

_HONOURED = {"scaling", "softcap", "s_aux", "sliding_window"}
_HARMLESS = {
    "dropout",
    "position_ids",
    "position_embeddings",
    "cache_position",
    "use_cache",
    "output_attentions",
    "output_hidden_states",
    "return_dict",
}


@dataclass(slots=True)
class _Notes:
    layers: dict[int, LayerSpec] = field(default_factory=dict)


def probe_layers(model: PreTrainedModel, device: torch.device) -> tuple[tuple[LayerSpec, ...], int]:
    """Run two tokens through a structural copy.

    Returns (one LayerSpec per layer, width of the logits). Leaves the copy's attention switched to the probe's.
    Raises ModelLoadError where the model asks its attention for something that paged attention does not do.
    """
    set_attention(model, PROBE)
    notes = _Notes()
    ids = torch.zeros(1, _TOKENS, dtype=torch.int64, device=device)
    positions = torch.arange(_TOKENS, device=device).unsqueeze(0)
    try:
        with torch.inference_mode():
            output = model(input_ids=ids, position_ids=positions, use_cache=False, paged=notes)
        vocab_size = int(output.logits.shape[-1])
    except ModelLoadError:
        raise
    except Exception as error:
        raise _refusal(model, f"its code fails on a plain forward pass ({type(error).__name__}: {error})") from error
    expected = int(model.config.num_hidden_layers)
    if sorted(notes.layers) != list(range(expected)):
        raise _refusal(
            model, f"only {len(notes.layers)} of its {expected} layers use attention through transformers' interface"
        )
    return tuple(notes.layers[index] for index in range(expected)), vocab_size


def _refusal(model: torch.nn.Module, reason: str) -> ModelLoadError:
    return ModelLoadError(f"{type(model).__name__} cannot be served: {reason}.")


def _note(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    paged: _Notes,
    **options: object,
) -> tuple[torch.Tensor, None]:
    """The probe's attention function. Returns zeros of the shape that attention would have."""
    index = getattr(module, "layer_idx", None)
    if not isinstance(index, int):
        raise _refusal(module, "its attention layers carry no layer_idx")
    if index in paged.layers:
        raise _refusal(module, f"layer {index} calls attention more than once")
    if key.shape[0] != 1 or key.shape[2] != _TOKENS or query.shape[2] != _TOKENS or value.shape[2] != _TOKENS:
        raise _refusal(module, f"layer {index} does not keep one K and V per token")
    _check_options(module, index, options)
    paged.layers[index] = LayerSpec(
        num_kv_heads=key.shape[1],
        head_dim=max(key.shape[3], value.shape[3]),
        sliding_window=_window(module, index, attention_mask),
    )
    return query.new_zeros(1, _TOKENS, query.shape[1], value.shape[3]), None


def _check_options(module: torch.nn.Module, index: int, options: dict[str, object]) -> None:
    if options.get("is_causal") is False or getattr(module, "is_causal", True) is False:
        raise _refusal(module, f"the attention of layer {index} is not causal")
    for name, value in options.items():
        known = name in _HONOURED or name in _HARMLESS or name == "is_causal"
        if not known and value is not None and value is not False:
            raise _refusal(module, f"layer {index} hands `{name}` to its attention, which Jitney's does not know")


def _window(module: torch.nn.Module, index: int, mask: torch.Tensor | None) -> int | None:
    if mask is None or mask.numel() != 1 or mask.is_floating_point():
        raise _refusal(module, f"layer {index} builds its own attention mask")
    window = int(mask)
    if window == _UNKNOWN:
        raise _refusal(module, f"the mask of layer {index} is neither plain causal nor a sliding window")
    return None if window == _FULL else window


def _describe_mask(
    *,
    mask_function: Callable[..., torch.Tensor],
    device: torch.device | str = "cpu",
    local_size: int | None = None,
    **_: object,
) -> torch.Tensor:
    """The probe's mask function. Returns the window (0: none, -1: some other mask) as a [1, 1, 1, 1] tensor."""
    window = local_size if _is_served(mask_function, local_size, device) else _UNKNOWN
    return torch.full((1, 1, 1, 1), _FULL if window is None else window, dtype=torch.int64, device=device)


def _is_served(mask_function: Callable[..., torch.Tensor], local_size: int | None, device: torch.device | str) -> bool:
    """Whether the mask is what paged attention computes, tried at the pairs (query, key) where others differ."""
    expected = {(0, 0): True, (0, 1): False, (_FAR, _FAR + 1): False}
    if local_size is None:
        expected[_FAR, 0] = True
    else:
        # A chunked mask of the same size differs at the first of these.
        expected |= {(local_size, 1): local_size > 1, (local_size, 0): False, (_FAR, _FAR - local_size + 1): True}
        expected[_FAR, _FAR - local_size] = False
    zero = torch.zeros((), dtype=torch.int64, device=device)
    try:
        return all(
            bool(mask_function(zero, zero, zero + query, zero + key)) is visible
            for (query, key), visible in expected.items()
        )
    except (IndexError, RuntimeError):
        return False  # a mask made of tables over this very batch, not of positions


def _register() -> None:
    if PROBE not in ALL_ATTENTION_FUNCTIONS:
        ALL_ATTENTION_FUNCTIONS.register(PROBE, _note)
        ALL_MASK_ATTENTION_FUNCTIONS.register(PROBE, _describe_mask)


_register()
