"""What the kernels should compute, in float64 and as plainly as it can be written. Shares no code with the kernels."""

import torch
import torch.nn.functional as F


def attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    scale: float,
    sliding_window: int | None = None,
    softcap: float | None = None,
) -> torch.Tensor:
    """One row: query [n, Hq, D] are the last n positions of key and value [L, Hkv, D]. Returns [n, Hq, D] float64."""
    group = query.shape[1] // key.shape[1]
    key, value = (states.double().repeat_interleave(group, dim=1) for states in (key, value))
    scores = torch.einsum("nhd,lhd->hnl", query.double(), key) * scale
    if softcap is not None:
        scores = softcap * torch.tanh(scores / softcap)
    distance = torch.arange(len(key) - len(query), len(key))[:, None] - torch.arange(len(key))
    hidden = distance < 0
    if sliding_window is not None:
        hidden |= distance >= sliding_window
    return torch.einsum("hnl,lhd->nhd", scores.masked_fill(hidden, -torch.inf).softmax(-1), value)


def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float, offset: float = 0.0) -> torch.Tensor:
    x = x.double()
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps) * (offset + weight.double())


def rope(states: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
    """[T, H, D] with the first 2 * cos.shape[1] of D rotated, half-split (NeoX)."""
    half = cos.shape[1]
    cos, sin = cos[positions].double()[:, None], sin[positions].double()[:, None]
    first, second, rest = torch.split(states.double(), [half, half, states.shape[-1] - 2 * half], dim=-1)
    return torch.cat((first * cos - second * sin, second * cos + first * sin, rest), dim=-1)


def gated_activation(gate_up: torch.Tensor, activation: str) -> torch.Tensor:
    gate, up = gate_up.double().chunk(2, dim=-1)
    return (F.silu(gate) if activation == "silu" else F.gelu(gate, approximate="tanh")) * up


def error(output: torch.Tensor, reference: torch.Tensor) -> float:
    """|output - reference| / |reference|; infinite where the output holds NaN."""
    output, reference = output.detach().double().cpu(), reference.detach().double().cpu()
    ratio = float((output - reference).norm() / reference.norm().clamp_min(1e-30))
    return ratio if ratio == ratio else float("inf")
