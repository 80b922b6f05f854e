"""The profile run at an engine's start launches every kernel that serving needs, so that none compiles in traffic."""

import importlib
import pkgutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from jitney.config import EngineConfig
from jitney.device.gpu_memory import MemoryReading
from jitney.kernels import triton as package
from jitney.kernels.triton.attention import TritonAttention
from jitney.kernels.triton.ops import TritonOps
from jitney.kernels.triton.split_decode import MIN_SPLIT
from jitney.models.decoder.model import FusedDecoder
from jitney.runner import sampling_state
from jitney.runner.profile_run import profile_run
from jitney.runner.sampling_ops import TritonSamplingOps
from tests.models.decoder.families import fused, model_of

KERNELS = {
    "ragged_kernel",
    "decode_kernel",
    "merge_kernel",
    "rms_norm_kernel",
    "rope_and_write_kv_kernel",
    "gated_activation_kernel",
    "_split_kernel",
    "_merge_kernel",
    "_drop_mask_kernel",
}


class Watched:
    """A kernel that says it has been launched."""

    def __init__(self, name: str, kernel: Any, launched: set[str]) -> None:
        self._name, self._kernel, self._launched = name, kernel, launched

    def __getitem__(self, grid: Any) -> Any:
        self._launched.add(self._name)
        return self._kernel[grid]


class NoMeter:
    def start(self) -> None:
        pass

    def read(self) -> MemoryReading:
        return MemoryReading(total=0, free=0, allocated=0, reserved=0, peak_reserved=0)


def modules() -> list[Any]:
    return [importlib.import_module(f"{package.__name__}.{m.name}") for m in pkgutil.iter_modules(package.__path__)]


def watch(monkeypatch: pytest.MonkeyPatch) -> set[str]:
    launched: set[str] = set()
    for module in modules():
        for name, kernel in list(vars(module).items()):
            if name.endswith("_kernel"):
                monkeypatch.setattr(module, name, Watched(name, kernel, launched))
    return launched


def test_these_are_all_the_kernels() -> None:
    assert {name for module in modules() for name in vars(module) if name.endswith("_kernel")} == KERNELS


@pytest.mark.parametrize("max_num_batched_tokens", [2, 4], ids=["all rows decode in the largest step", "some do"])
def test_the_profile_run_launches_them_all(
    max_num_batched_tokens: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    launched = watch(monkeypatch)
    monkeypatch.setattr(sampling_state, "choose_sampling_ops", lambda device: TritonSamplingOps())
    reference = fused(model_of("llama"), tmp_path)
    long = replace(reference._config, max_position_embeddings=MIN_SPLIT.value + 1)  # more than one split has
    model = FusedDecoder("llama", long, reference._weights, TritonAttention(), TritonOps())
    config = EngineConfig(max_num_seqs=2, max_num_batched_tokens=max_num_batched_tokens)
    with torch.inference_mode():
        profile_run(model, config, NoMeter())
    assert launched == KERNELS
