"""From a config and a source of tensors to a fused decoder on its device. Knows no file format."""

import torch

from jitney.kernels.attention import TorchAttention
from jitney.kernels.ops import TorchOps
from jitney.models.decoder.config import DecoderConfig
from jitney.models.decoder.model import FusedDecoder
from jitney.models.decoder.weights import DecoderWeights, TensorSource, load_weights


def load_decoder(config: DecoderConfig, source: TensorSource, dtype: torch.dtype, device: torch.device) -> FusedDecoder:
    """Fill the weights from `source`, tensor by tensor, straight into their place on `device`.

    Raises ModelLoadError, naming the tensors, where the source does not hold what the config asks for.
    """
    return make_decoder(source.origin, config, load_weights(config, source, dtype, device))


def make_decoder(name: str, config: DecoderConfig, weights: DecoderWeights) -> FusedDecoder:
    """A decoder around weights, with the kernels that suit the device they are on."""
    return FusedDecoder(name, config, weights, TorchAttention(), TorchOps())
