"""From a config and a source of tensors to a decoder with the kernels that suit its device. Knows no file format."""

from dataclasses import dataclass

import torch

from jitney.config import CpuKernels
from jitney.errors import ModelLoadError
from jitney.kernels.attention import choose_attention
from jitney.kernels.choose import choose_ops
from jitney.kernels.native.library import has_bfloat16_instructions
from jitney.models.decoder.config import DecoderConfig
from jitney.models.decoder.model import FusedDecoder
from jitney.models.decoder.native import NativeDecoder, why_not_native
from jitney.models.decoder.weights import TensorSource, load_weights


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelSettings:
    """What the choice of kernels depends on, besides the model and its device (see EngineConfig)."""

    block_size: int = 16
    """Tokens in a block of the KV cache: not every kernel reads every size."""
    cpu_kernels: CpuKernels = "auto"
    cpu_threads: int = 1


def is_fast_in_bfloat16(config: DecoderConfig, kernels: KernelSettings) -> bool:
    """Whether this CPU has instructions for bfloat16, and native kernels that use them for the model."""
    if kernels.cpu_kernels == "torch" or why_not_native(config, torch.bfloat16, kernels.block_size) is not None:
        return False
    return has_bfloat16_instructions()


def load_decoder(
    config: DecoderConfig,
    source: TensorSource,
    dtype: torch.dtype,
    device: torch.device,
    kernels: KernelSettings,
) -> FusedDecoder | NativeDecoder:
    """Fill the weights from `source`, tensor by tensor, straight into their place on `device`.

    Raises ModelLoadError, naming the tensors, where the source does not hold what the config asks for, and where native
    kernels are asked for that do not serve the model.
    """
    if device.type == "cpu" and kernels.cpu_kernels != "torch":
        reason = why_not_native(config, dtype, kernels.block_size)
        if reason is None:
            return NativeDecoder(config, source, dtype, kernels.cpu_threads)
        if kernels.cpu_kernels == "native":
            raise ModelLoadError(
                f"cpu_kernels='native' does not serve {source.origin}: {reason}. Change that, or use 'auto'."
            )
    return _fused(config, source, dtype, device, kernels.block_size)


def _fused(
    config: DecoderConfig, source: TensorSource, dtype: torch.dtype, device: torch.device, block_size: int
) -> FusedDecoder:
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
