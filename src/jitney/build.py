"""From settings to a running engine: model, tokenizer, memory, runner, device, limits. Used by LLM and AsyncLLM.

torch and transformers are imported when a model is loaded, not before.
"""

import difflib
import logging
from collections.abc import Mapping
from dataclasses import fields, replace
from os import PathLike
from typing import TYPE_CHECKING, Any

from jitney.config import EngineConfig
from jitney.device.base import Device, StepRunner
from jitney.engine.limits import resolve_limits
from jitney.engine.loop import Engine
from jitney.errors import ConfigError, ModelLoadError
from jitney.text.tokenizer import Tokenizer

if TYPE_CHECKING:
    import torch

    from jitney.models.base import PagedModel
    from jitney.models.decoder.native import NativeDecoder
    from jitney.models.load import LoadedModel
    from jitney.runner.memory_budget import MemoryBudget
    from jitney.runner.model_runner import ModelRunner

logger = logging.getLogger(__name__)

SIMULATED_STEP_S = 0.01
SIMULATED_TOKEN_S = 0.0001


def make_config(config: EngineConfig | None, settings: Mapping[str, Any]) -> EngineConfig:
    """`config` with `settings` on top. Raises ConfigError; for an unknown setting it names the closest one."""
    known = [field.name for field in fields(EngineConfig)]
    for name in settings:
        if name not in known:
            close = difflib.get_close_matches(name, known, n=1)
            hint = f"did you mean {close[0]}?" if close else f"there are {', '.join(known)}"
            raise ConfigError(f"there is no setting {name!r}; {hint}")
    return replace(config or EngineConfig(), **settings)


def build_engine(model: Any, tokenizer: Any, config: EngineConfig) -> tuple[Engine, Tokenizer | None]:
    """Load a model and put an engine around it.

    Args:
        model: a path, hub id, loaded transformers model, or None for the embedded one.
        tokenizer: a Tokenizer, a transformers tokenizer, or None: the model's own, if it brings one.

    Raises:
        ConfigError: the settings do not fit the model or the machine.
        ModelLoadError: the model or the tokenizer cannot be found, read or served.
    """
    loaded = _load(model, config)
    chosen = _own_tokenizer(loaded, config) if tokenizer is None else _as_tokenizer(tokenizer)
    eos_token_ids = (*loaded.eos_token_ids, *(chosen.eos_token_ids if chosen is not None else ()))
    return engine_around(loaded.model, tuple(dict.fromkeys(eos_token_ids)), config), chosen


def _load(model: Any, config: EngineConfig) -> "LoadedModel":
    from transformers import PreTrainedModel

    from jitney.device.choice import choose_device
    from jitney.device.cores import usable_cores
    from jitney.models.decoder.load import KernelSettings
    from jitney.models.embedded import embedded_model_path
    from jitney.models.load import load_model

    if model is None:
        model = embedded_model_path()
    elif not isinstance(model, str | PathLike | PreTrainedModel):
        raise ModelLoadError(
            f"model must be a path, a hub id or a loaded transformers model, got {type(model).__name__}"
        )
    chosen: str = choose_device(config.device)
    if config.device == "auto" and isinstance(model, PreTrainedModel):
        chosen = model.device.type  # it is shared where it is
    where = "cpu" if chosen == "simulated" else chosen
    kernels = KernelSettings(
        block_size=config.block_size, cpu_kernels=config.cpu_kernels, cpu_threads=config.cpu_threads or usable_cores()
    )
    return load_model(model, config.dtype, config.trust_remote_code, where, kernels)


def _own_tokenizer(loaded: "LoadedModel", config: EngineConfig) -> Tokenizer | None:
    """The tokenizer that lies beside the weights, or in the same GGUF file."""
    if loaded.path is None:
        return None
    if loaded.path.is_dir():
        return Tokenizer.from_folder(loaded.path, trust_remote_code=config.trust_remote_code)
    return Tokenizer.from_gguf(loaded.path)


def _as_tokenizer(tokenizer: Any) -> Tokenizer:
    return tokenizer if isinstance(tokenizer, Tokenizer) else Tokenizer.from_transformers(tokenizer)


def engine_around(model: "PagedModel | NativeDecoder", eos_token_ids: tuple[int, ...], config: EngineConfig) -> Engine:
    """Memory, runner, device and engine around a model that is where it shall run. Raises ConfigError."""
    from jitney.models.decoder.native import NativeDecoder
    from jitney.runner.model_runner import ModelRunner
    from jitney.runner.native_runner import NativeRunner

    spec = model.spec
    num_kv_blocks = _num_kv_blocks(model, config)
    limits = resolve_limits(
        config,
        vocab_size=spec.vocab_size,
        max_position_embeddings=spec.max_position_embeddings,
        num_kv_blocks=num_kv_blocks,
        eos_token_ids=eos_token_ids,
        num_host_kv_blocks=_num_host_kv_blocks(model, config, num_kv_blocks),
    )
    sizes = (
        limits.num_kv_blocks,
        config.block_size,
        config.num_slots,
        limits.max_model_len,
        limits.num_host_kv_blocks,
    )
    if isinstance(model, NativeDecoder):
        return Engine(config, limits, _host_device(NativeRunner(model, *sizes), config))
    runner = ModelRunner(model, *sizes)
    if model.device.type == "cuda" and model.supports_graphs and not config.enforce_eager:
        from jitney.device.cuda_graphs import CudaGraphs

        runner.capture_decode_graphs(CudaGraphs(model.device), config.max_num_seqs)
    return Engine(config, limits, _make_device(runner, model.device, config))


def _num_kv_blocks(model: "PagedModel | NativeDecoder", config: EngineConfig) -> int:
    from jitney.models.decoder.native import NativeDecoder

    if not isinstance(model, NativeDecoder) and model.device.type == "cuda":
        return _gpu_memory_budget(model, config).num_kv_blocks
    from jitney.device.memory import available_memory_bytes
    from jitney.runner.kv_sizing import num_kv_blocks, resolve_max_model_len

    available = available_memory_bytes()
    return num_kv_blocks(model.spec, config, resolve_max_model_len(model.spec, config, available), available)


def _gpu_memory_budget(model: "PagedModel", config: EngineConfig) -> "MemoryBudget":
    from jitney.device.gpu_memory import CudaMemoryMeter
    from jitney.runner.decode_graphs import padded_sizes
    from jitney.runner.memory_budget import plan_memory
    from jitney.runner.profile_run import profile_run

    profile = profile_run(model, config, CudaMemoryMeter(model.device))
    records_graphs = model.supports_graphs and not config.enforce_eager
    budget = plan_memory(
        profile, model.spec, config, num_graphs=len(padded_sizes(config.max_num_seqs)) if records_graphs else 0
    )
    logger.info("%s", budget.summary())
    return budget


def _num_host_kv_blocks(model: "PagedModel | NativeDecoder", config: EngineConfig, num_kv_blocks: int) -> int:
    from jitney.device.memory import available_memory_bytes
    from jitney.runner.kv_sizing import num_host_kv_blocks

    available = available_memory_bytes()
    if model.device.type == "cpu":  # the KV cache will take of the same memory
        available -= (num_kv_blocks + 1) * config.block_size * model.spec.kv_bytes_per_token()
    return num_host_kv_blocks(model.spec, config, max(available, 0))


def _make_device(runner: "ModelRunner", where: "torch.device", config: EngineConfig) -> Device:
    """The device that holds the weights."""
    if where.type == "cuda" and config.device != "simulated":
        from jitney.device.cuda import CudaDevice
        from jitney.device.cuda_streams import CudaStreams

        return CudaDevice(runner, CudaStreams(where), config.depth)
    return _host_device(runner, config)


def _host_device(runner: StepRunner, config: EngineConfig) -> Device:
    """The CPU; `simulated` computes in the caller's thread, on a virtual clock."""
    if config.device == "simulated":
        from jitney.device.simulated import SimulatedDevice, linear_cost

        return SimulatedDevice(runner, linear_cost(SIMULATED_STEP_S, SIMULATED_TOKEN_S))
    from jitney.device.cpu import CpuDevice

    return CpuDevice(runner)
