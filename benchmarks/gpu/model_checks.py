"""A small random model through the whole engine: device against CPU, sync against async, graphs against eager.

In float32 (without tf32) greedy tokens must be the same everywhere, and sampled ones in every mode on one device. In
bfloat16 rounding differs with the shape of a batch, so there the logits are held to a tolerance: not much further from
float32 on the same weights than transformers' own bfloat16 forward pass on the same device.
"""

import copy
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from transformers import PreTrainedModel

from gpu import reference
from gpu.checks import Checks
from gpu.ragged import ragged_batch, random_tables
from gpu.scale import Scale
from gpu.served import Served, fused_model, random_model
from jitney.engine.limits import make_requests
from jitney.engine.loop import Engine
from jitney.kernels.attention import installed, make_attention
from jitney.models.base import PagedModel
from jitney.models.transformers_model import TransformersModel
from jitney.runner.kv_cache import allocate_kv_cache
from jitney.sampling_params import SamplingParams

MODES: dict[str, dict[str, Any]] = {
    "sync": {"async_scheduling": False},
    "async": {"async_scheduling": True, "max_steps_in_flight": 2},
    "async, 3 in flight": {"async_scheduling": True, "max_steps_in_flight": 3},
}
CHUNK = 32
LEAST_LIMIT = 2e-2
Tokens = list[list[int]]


def check_model(checks: Checks, scale: Scale, device: str) -> None:
    """Tokens in float32, then logits in float32 and bfloat16, tokens in bfloat16 last (shown, not judged)."""
    model = random_model(scale.small_shape, "float32", device)
    half = random_model(scale.small_shape, "bfloat16", device)
    _check_tokens(checks, scale, model, device)
    _check_logits(checks, scale, model, device, 1e-3)
    _check_logits(checks, scale, half, device, None)
    if device == "cuda":
        _show_agreement(checks, scale, half, device)


def _paths(model: PreTrainedModel) -> dict[str, PagedModel]:
    """The ways to run it, the fused decoder first."""
    attention = make_attention("triton" if model.device.type == "cuda" else "torch", model.device, installed())
    return {"fused": fused_model(model), "transformers": TransformersModel(model, attention)}


def _check_tokens(checks: Checks, scale: Scale, model: PreTrainedModel, device: str) -> None:
    cpu = _serve(scale, TransformersModel(_on_cpu(model)), "cpu", enforce_eager=True)
    expected = generate(cpu.engine(**MODES["sync"]), scale)
    cpu.close()
    for path, paged in _paths(model).items():
        runs = {"graphs": False, "eager": True} if _has_graphs(paged) else {"eager": True}
        first: Tokens | None = None
        for name, eager in runs.items():
            served = _serve(scale, paged, device, enforce_eager=eager)
            for mode, settings in MODES.items():
                case = f"float32, {path}, {name}, {mode}"
                if checks.part.left_s <= 0:
                    checks.left_out("tokens", "no time", case)
                    continue
                greedy, sampled = generate(served.engine(**settings), scale)
                checks.equal(f"greedy tokens, {device} and CPU", case, greedy, expected[0], _first(greedy, expected[0]))
                first = first or sampled
                checks.equal("sampled tokens, all modes", case, sampled, first, _first(sampled, first))
            served.close()


def _has_graphs(model: PagedModel) -> bool:
    """Whether decode steps of the model may be captured; a model that does not say so is run both ways."""
    return bool(getattr(model, "supports_graphs", True))


def _on_cpu(model: Any) -> PreTrainedModel:
    copied: PreTrainedModel = copy.deepcopy(model).to("cpu")
    return copied


def _serve(scale: Scale, model: PagedModel, device: str, enforce_eager: bool) -> Served:
    """An engine with fewer seats than requests and small steps: prompts are cut, and seats change hands."""
    longest = max(scale.check_lens) + scale.check_tokens + 1
    return Served.build(
        model,
        device=device,
        enforce_eager=enforce_eager,
        max_model_len=longest,
        max_num_seqs=scale.check_seats,
        max_num_batched_tokens=2 * CHUNK + scale.check_seats,
        prefill_chunk_size=CHUNK,
        max_steps_in_flight=3,
        num_kv_blocks=3 * scale.check_seats * -(-longest // 16),
    )


def generate(engine: Engine, scale: Scale) -> tuple[Tokens, Tokens]:
    """(greedy, sampled) output tokens of one traffic in which both kinds share every step."""
    random = np.random.default_rng(0)
    choices = (
        SamplingParams(temperature=0.0, max_tokens=scale.check_tokens, ignore_eos=True),
        SamplingParams(temperature=0.8, top_k=50, top_p=0.9, seed=7, max_tokens=scale.check_tokens, ignore_eos=True),
    )
    kinds: tuple[list[Any], list[Any]] = ([], [])
    for index, length in enumerate(scale.check_lens):
        prompt = random.integers(3, engine.limits.vocab_size, length, dtype=np.int32)
        for kind, params in zip(kinds, choices, strict=True):
            name = f"{len(kinds[0])} {len(kinds[1])}"
            (request,) = make_requests(f"check {index} {name}", prompt, params, engine.limits, engine_seed=0)
            kind.append(request)
            engine.add(request)
    engine.run_until_idle()
    for request in (*kinds[0], *kinds[1]):
        if request.error is not None:
            raise request.error
    greedy, sampled = ([request.output_token_ids for request in kind] for kind in kinds)
    return greedy, sampled


def _first(found: Sequence[Sequence[int]], expected: Sequence[Sequence[int]]) -> str:
    """Where two outputs part, and how many tokens are the same."""
    for index, (own, other) in enumerate(zip(found, expected, strict=True)):
        if list(own) != list(other):
            place = next((i for i, (a, b) in enumerate(zip(own, other, strict=False)) if a != b), "its end")
            return f"request {index} parts at token {place}; {_agreement(found, expected)} of all tokens are equal"
    return ""


def _agreement(found: Sequence[Sequence[int]], expected: Sequence[Sequence[int]]) -> str:
    pairs = [(a, b) for own, other in zip(found, expected, strict=True) for a, b in zip(own, other, strict=False)]
    return f"{100 * sum(a == b for a, b in pairs) / max(1, len(pairs)):.1f} %"


@torch.inference_mode()
def _check_logits(checks: Checks, scale: Scale, model: PreTrainedModel, device: str, limit: float | None) -> None:
    """All logits of one prompt, whole and in two chunks, against transformers in float32 on the CPU."""
    length = max(scale.check_lens)
    dtype = str(model.dtype).removeprefix("torch.")
    token_ids = torch.randint(3, scale.small_shape["vocab_size"], (length,), generator=torch.Generator().manual_seed(3))
    exact: Any = _on_cpu(model).float()
    expected = exact(input_ids=token_ids[None], use_cache=False).logits[0]
    if limit is None:
        theirs: Any = model
        output = theirs(input_ids=token_ids[None].to(device), use_cache=False).logits[0]
        limit = max(LEAST_LIMIT, 1.5 * reference.error(output, expected))
    cut = length // 2 + 1
    for path, paged in _paths(model).items():
        for name, pieces in (("whole prompt", (length,)), ("two chunks", (cut, length - cut))):

            def measured(paged: PagedModel = paged, pieces: tuple[int, ...] = pieces) -> float:
                return reference.error(_logits(paged, token_ids.to(device), pieces), expected)

            checks.error("logits, transformers on the CPU", f"{dtype}, {path}, {name}", measured, limit)


def _logits(paged: PagedModel, token_ids: torch.Tensor, pieces: Sequence[int]) -> torch.Tensor:
    """[T, vocab_size]: the prompt in pieces, each reading those before it from the cache."""
    device = token_ids.device
    tables = random_tables([len(token_ids)], 16, seed=0)
    cache = allocate_kv_cache(paged.spec, int(tables.max()) + 1, 16, device)
    found, past = [], 0
    for size in pieces:
        batch, _ = ragged_batch([(past, size)], 16, device, tables)
        wanted = torch.arange(size, device=device)
        found.append(paged.forward(token_ids[past : past + size], batch, cache, wanted))
        past += size
    return torch.cat(found)


def _show_agreement(checks: Checks, scale: Scale, model: PreTrainedModel, device: str) -> None:
    found = {}
    paged = next(iter(_paths(model).values()))
    for path, eager in (("graphs", False), ("eager", True)):
        served = _serve(scale, paged, device, enforce_eager=eager)
        for mode in ("sync", "async"):
            found[f"{path}, {mode}"] = generate(served.engine(**MODES[mode]), scale)[0]
        served.close()
    first, *others = found
    for other in others:
        checks.part.note(f"bfloat16 tokens, {first} and {other}: {_agreement(found[first], found[other])} equal")
