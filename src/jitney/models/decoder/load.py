"""From a config and a source of tensors to a fused decoder on its device. Knows no file format."""

import torch

from jitney.kernels.attention import choose_attention
from jitney.kernels.choose import choose_ops
from jitney.models.decoder.config import DecoderConfig
from jitney.models.decoder.model import FusedDecoder
from jitney.models.decoder.weights import TensorSource, load_weights


def load_decoder(
    config: DecoderConfig, source: TensorSource, dtype: torch.dtype, device: torch.device, block_size: int
) -> FusedDecoder:
    """Fill the weights from `source`, tensor by tensor, straight into their place on `device`.

    The kernels are those that suit the device, the model and the KV cache's `block_size`.

    Raises ModelLoadError, naming the tensors, where the source does not hold what the config asks for.
    """
    weights = load_weights(config, source, dtype, device)
    attention = choose_attention(
        device,
        dtype,
        [config.head_dim],
        block_size,
        has_softcap=config.attention_softcap is not None,
        has_sinks=False,
        has_window=any(layer.sliding_window is not None for layer in config.layers),
    )
    return FusedDecoder(source.origin, config, weights, attention, choose_ops(device))
