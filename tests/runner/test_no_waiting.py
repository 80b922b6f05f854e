"""A step never waits for the device: it runs on tensors that have no values, so that to look at one is an error."""

import ast
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten

import jitney
from jitney.device import transfer
from jitney.runner import kv_swap, sampling_state
from jitney.runner.model_runner import ModelRunner
from jitney.runner.sampling_ops import TritonSamplingOps
from jitney.sampling_params import SamplingParams
from jitney.types import SlotAdmission, StepInputs

from .fake_graphs import FakeGraphs
from .plain_model import PlainModel

RUNNER = Path(jitney.__file__).parent / "runner"


class HostWaits(AssertionError):
    pass


class NoWaiting(TorchDispatchMode):
    """Refuses what makes a GPU's host wait: looking at values (meta tensors refuse too) and copies it must attend."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        tensors = [value for value in tree_flatten((args, kwargs))[0] if isinstance(value, torch.Tensor)]
        name = str(func)
        on_host = [tensor for tensor in tensors if tensor.device.type == "cpu"]
        if name.startswith("aten.copy_") and all(map(is_pinned, on_host)) and (args[2:] or [False])[0]:
            return args[0]  # meta tensors have nothing to copy
        if on_host and len(on_host) < len(tensors):
            raise HostWaits(f"{name} takes a tensor of the host's together with the device's")
        target = kwargs.get("device")
        if on_host and target is not None and target.type != "cpu" and not kwargs.get("non_blocking"):
            raise HostWaits(f"{name} copies to the device and waits")
        if name.startswith(("aten.index", "aten._index")) and any(t.dtype is torch.bool for t in tensors[1:]):
            raise HostWaits(f"{name} by a mask")
        return func(*args, **kwargs)


_PINNED: set[int] = set()
"""Addresses of the memory that would be pinned on a GPU's host."""


def is_pinned(tensor: torch.Tensor) -> bool:
    return tensor.untyped_storage().data_ptr() in _PINNED


@pytest.fixture(autouse=True)
def _no_pinned_memory_here(monkeypatch: pytest.MonkeyPatch) -> None:
    def empty_on_host(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> torch.Tensor:
        tensor = torch.empty(shape, dtype=dtype)
        _PINNED.add(tensor.untyped_storage().data_ptr())
        return tensor

    _PINNED.clear()
    monkeypatch.setattr(transfer, "_pinned", lambda tensor: tensor)
    monkeypatch.setattr(kv_swap, "empty_on_host", empty_on_host)


EVERYTHING = [
    SamplingParams(temperature=0),
    SamplingParams(),
    SamplingParams(temperature=0.5, min_p=0.1),
    SamplingParams(top_k=5, logprobs=3),
    SamplingParams(top_p=0.8),
    SamplingParams(top_k=7, top_p=0.8, seed=1),
    SamplingParams(temperature=0, logprobs=0),
    SamplingParams(repetition_penalty=1.2, presence_penalty=0.5, frequency_penalty=0.1),
    SamplingParams(allowed_token_ids=[1, 2, 3], logit_bias={2: 1.0}, bad_token_ids=[1], min_tokens=2),
]
PROMPT = [5, 17, 3, 44]


def admit(slot: int, params: SamplingParams) -> SlotAdmission:
    return SlotAdmission(slot, params, slot, (2,), np.array(PROMPT, np.int32), np.empty(0, np.int32))


def prefill_step(all_params: Sequence[SamplingParams], decode_rows: int = 0) -> StepInputs:
    """`decode_rows` slots that go on, then a whole prompt for each other slot; one table entry is named twice."""
    num_rows = len(all_params)
    new = range(decode_rows, num_rows)
    starts = [len(PROMPT)] * decode_rows + [0] * len(new)
    lens = [1] * decode_rows + [len(PROMPT)] * len(new)
    updates = [(slot, 0, 1 + slot) for slot in new] + [(new[0], 0, 1 + new[0])]
    flat = [*range(num_rows), *starts, *lens, *range(num_rows), *PROMPT * len(new), *(x for u in updates for x in u)]
    admissions = tuple(admit(slot, all_params[slot]) for slot in new)
    wanted = tuple((row, 2) for row in new if all_params[row].prompt_logprobs is not None)
    counts = num_rows, decode_rows, num_rows, len(PROMPT) * len(new), len(updates)
    return StepInputs(0, *counts, np.array(flat, np.int32), admissions, wanted)


def decode_step(num_rows: int, start: int) -> StepInputs:
    slots = np.arange(num_rows)
    data = np.concatenate([slots, np.full(num_rows, start), np.ones(num_rows), slots]).astype(np.int32)
    return StepInputs(1, num_rows, num_rows, num_rows, 0, 0, data, (), ())


def runner_without_values(num_slots: int, num_host_kv_blocks: int = 0) -> ModelRunner:
    return ModelRunner(PlainModel("meta"), 32, 8, num_slots, 64, num_host_kv_blocks)


def run(runner: ModelRunner, inputs: StepInputs) -> list[torch.Tensor]:
    with NoWaiting():
        return runner.execute(torch.empty(len(inputs.data), dtype=torch.int32, device="meta"), inputs).tensors()


class NotLaunched:
    """In place of a Triton kernel: what is left is what its host does."""

    def __init__(self) -> None:
        self.num_launches = 0

    def __getitem__(self, grid: Any) -> Any:
        return self._launch

    def _launch(self, *args: Any, **options: Any) -> None:
        self.num_launches += 1


def kernels_not_launched(monkeypatch: pytest.MonkeyPatch) -> NotLaunched:
    """Sampling as a GPU with Triton has it, without the kernels themselves."""
    pytest.importorskip("triton")
    from jitney.kernels.triton import greedy, top_k_top_p

    kernel = NotLaunched()
    for module, name in ((greedy, "_split_kernel"), (greedy, "_merge_kernel"), (top_k_top_p, "_drop_mask_kernel")):
        monkeypatch.setattr(module, name, kernel)
    monkeypatch.setattr(sampling_state, "choose_sampling_ops", lambda device: TritonSamplingOps())
    return kernel


def test_a_batch_of_all_features_does_not_wait_with_tritons_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    kernel = kernels_not_launched(monkeypatch)
    runner = runner_without_values(len(EVERYTHING))
    run(runner, prefill_step(EVERYTHING))
    run(runner, decode_step(len(EVERYTHING), len(PROMPT)))
    assert kernel.num_launches == 6, "greedy tokens in two launches, one mask; in each step"


@pytest.mark.parametrize("params", EVERYTHING, ids=str)
def test_no_sampling_feature_waits(params: SamplingParams) -> None:
    runner = runner_without_values(2)
    run(runner, prefill_step([params, params]))
    token_ids, is_valid, *_ = run(runner, decode_step(2, len(PROMPT)))
    assert token_ids.shape == is_valid.shape == (2,)


def test_a_batch_of_all_features_and_prompt_logprobs_does_not_wait() -> None:
    params = [*EVERYTHING, SamplingParams(temperature=0, prompt_logprobs=2)]
    runner = runner_without_values(len(params))
    run(runner, prefill_step(params))
    for start in range(len(PROMPT), len(PROMPT) + 3):
        run(runner, decode_step(len(params), start))
    run(runner, prefill_step(params, decode_rows=4))


def test_a_step_that_swaps_does_not_wait() -> None:
    runner = runner_without_values(2, num_host_kv_blocks=6)
    run(runner, prefill_step(EVERYTHING[:2]))
    plain, swaps = decode_step(2, len(PROMPT)), np.array([[3, 0], [4, 1], [5, 2], [6, 4], [7, 3]], np.int32)
    data = np.concatenate((plain.data, swaps.ravel()))
    token_ids, *_ = run(runner, replace(plain, data=data, num_swap_out=3, num_swap_in=2))
    assert token_ids.shape == (2,)


def test_graph_steps_and_their_capture_do_not_wait() -> None:
    runner = runner_without_values(len(EVERYTHING))
    library = FakeGraphs()
    with NoWaiting():
        runner.capture_decode_graphs(library, len(EVERYTHING))
    run(runner, prefill_step(EVERYTHING))
    run(runner, decode_step(3, len(PROMPT)))
    assert len(library.graphs) == 5 and library.num_replays == 1


@pytest.mark.parametrize(
    "waits",
    [
        lambda x: x[0].item(),
        lambda x: x.tolist(),
        lambda x: x.cpu(),
        lambda x: bool(x[0] > 0),
        lambda x: x.nonzero(),
        lambda x: x[x > 0],
        lambda x: x.masked_select(x > 0),
        lambda x: x.unique(),
        lambda x: x.repeat_interleave(x.long()),
        lambda x: x[torch.arange(2)],
        lambda x: torch.from_numpy(np.arange(2)).to(x.device),
        lambda x: x.copy_(torch.ones(4)),
        lambda x: x.copy_(torch.ones(4), non_blocking=True),
        lambda x: torch.ones(4).copy_(x, non_blocking=True),
        lambda x: x.__setitem__(x > 0, 1.0),
    ],
)
def test_what_waits_is_noticed(waits: Any) -> None:
    with pytest.raises((HostWaits, RuntimeError, NotImplementedError)), NoWaiting():
        waits(torch.zeros(4, device="meta"))


@pytest.mark.parametrize("path", sorted(RUNNER.glob("*.py")), ids=lambda path: path.name)
def test_the_runner_makes_tensors_of_host_values_by_one_function_only(path: Path) -> None:
    """torch.tensor(values, device=...) copies from pageable memory, which no dispatch mode can see."""
    calls = {ast.unparse(node.func) for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Call)}
    assert not calls & {"torch.tensor", "torch.as_tensor", "torch.from_numpy", "torch.asarray"}
