"""Every set of small ops (norms, rotary positions with the KV write, gated activations) against float64 references."""

from typing import Any

import torch

from gpu import reference
from gpu.checks import Checks, find
from gpu.kernel_checks import LIMITS

OPS = (("jitney.kernels.ops", "TorchOps", False), ("jitney.kernels.triton.ops", "TritonOps", True))
"""(module, class, whether it needs a GPU)"""
EPS = 1e-5
SIZES = {"one token": (1, 64, 2048), "decode": (32, 128, 4096), "prefill": (300, 80, 2560)}
"""(tokens, head size, hidden size); the feed-forward size is the hidden size too."""


def check_ops(checks: Checks, device: torch.device, ends_at_s: float) -> None:
    """All ops of all classes, as long as the part has more than `ends_at_s` seconds left."""
    for module, name, needs_gpu in OPS:
        kind = find(module, name)
        if kind is None:
            checks.absent(name, f"{module} has none here")
            continue
        if needs_gpu and device.type != "cuda":
            checks.left_out(name, "needs a GPU")
            continue
        for size in SIZES:
            for dtype in (torch.bfloat16, torch.float32):
                if checks.part.left_s < ends_at_s:
                    checks.left_out(name, "no time", f"{size}, {dtype}")
                    continue
                _check(checks, name, kind(), size, dtype, device)


def _check(checks: Checks, name: str, ops: Any, size: str, dtype: torch.dtype, device: torch.device) -> None:
    case, limit = f"{size}, {str(dtype).removeprefix('torch.')}", LIMITS[dtype]
    tokens, head_dim, hidden = SIZES[size]
    random = torch.Generator().manual_seed(tokens)

    def fresh(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=random).to(dtype).to(device)

    x, residual, weight = fresh(tokens, hidden), fresh(tokens, hidden), fresh(hidden)
    gate_up = fresh(tokens, 2 * hidden)
    for offset in (0.0, 1.0):  # 1: Gemma
        expected = reference.rms_norm(x.cpu(), weight.cpu(), EPS, offset)
        checks.error(
            f"{name}.rms_norm", case, _compare(lambda o=offset: ops.rms_norm(x, weight, EPS, o), expected), limit
        )
    added = x + residual
    expected = torch.cat((reference.rms_norm(added.cpu(), weight.cpu(), EPS), added.cpu().double()))
    both = _compare(lambda: torch.cat(ops.add_rms_norm(x.clone(), residual.clone(), weight, EPS)), expected)
    checks.error(f"{name}.add_rms_norm", case, both, limit)
    for activation in ("silu", "gelu_tanh"):
        expected = reference.gated_activation(gate_up.cpu(), activation)
        gated = _compare(lambda a=activation: ops.gated_activation(gate_up, a), expected)
        checks.error(f"{name}.gated_activation", f"{activation}, {case}", gated, limit)
    for share in (1, 2):
        rotated = _rotary(ops, fresh, tokens, head_dim, head_dim // share, device)
        checks.error(f"{name}.rope_and_write_kv", f"1/{share} rotated, {case}", rotated, limit)


def _compare(run: Any, expected: torch.Tensor) -> Any:
    return lambda: reference.error(run(), expected)


def _rotary(ops: Any, fresh: Any, tokens: int, head_dim: int, rotated: int, device: torch.device) -> Any:
    """The rotated query and both caches in one error: what is written, and that nothing else is."""
    block_size, num_positions = 16, 512
    query, key, value = fresh(tokens, 8, head_dim), fresh(tokens, 2, head_dim), fresh(tokens, 2, head_dim)
    frequency = 10_000.0 ** (-torch.arange(0, rotated, 2) / rotated)
    angles = torch.arange(num_positions)[:, None] * frequency
    cos, sin = angles.cos(), angles.sin()
    places = torch.randperm(num_positions, generator=torch.Generator().manual_seed(tokens))[:tokens] + block_size
    positions = torch.arange(tokens) + 7

    def measured() -> float:
        caches = [
            torch.full((num_positions // block_size + 2, block_size, 2, head_dim), 0.5, dtype=key.dtype, device=device)
            for _ in range(2)
        ]
        moved = (cos.to(device), sin.to(device), positions.to(device))
        output = ops.rope_and_write_kv(query.clone(), key.clone(), value, *moved, *caches, places.to(device))
        expected = [torch.full_like(cache, 0.5).cpu().double().flatten(0, 1) for cache in caches]
        expected[0][places] = reference.rope(key.cpu(), cos, sin, positions)
        expected[1][places] = value.cpu().double()
        pairs = [(output, reference.rope(query.cpu(), cos, sin, positions))]
        pairs += [(cache.flatten(0, 1), wanted) for cache, wanted in zip(caches, expected, strict=True)]
        return max(reference.error(found, wanted) for found, wanted in pairs)

    return measured
