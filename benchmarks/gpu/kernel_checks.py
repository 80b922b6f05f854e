"""Every attention backend and every set of small ops against float64 references, on fresh random inputs.

Caches hold NaN wherever no row's past is: a kernel that reads too far is seen. A backend may refuse a case, by an error
that says so: it is then listed as left out.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from gpu import reference
from gpu.checks import Checks
from gpu.ragged import Row, ragged_batch, random_tables
from gpu.scale import Scale
from jitney.kernels.attention import AttentionCase, attention_order, installed, make_attention
from jitney.kernels.paged_kv import PagedBatch

LIMITS = {torch.float32: 1e-3, torch.bfloat16: 1e-2, torch.float16: 3e-3}
BACKENDS = ("torch", "varlen", "triton", "flashinfer")


@dataclass(frozen=True, slots=True)
class Case:
    """One call of attention."""

    rows: tuple[Row, ...]
    head_dim: int = 128
    num_heads: int = 8
    num_kv_heads: int = 2
    block_size: int = 16
    dtype: torch.dtype = torch.bfloat16
    sliding_window: int | None = None
    softcap: float | None = None

    def __str__(self) -> str:
        extras = [f"window {self.sliding_window}"] * bool(self.sliding_window)
        extras += [f"softcap {self.softcap}"] * bool(self.softcap)
        kind = "decode" if all(new == 1 for _, new in self.rows) else "mixed"
        heads = f"{self.num_heads}/{self.num_kv_heads} heads of {self.head_dim}"
        dtype = str(self.dtype).removeprefix("torch.")
        return ", ".join([kind, heads, f"blocks of {self.block_size}", dtype, *extras])


def cases(longest: int) -> list[Case]:
    """Most telling first. Rows: prompts, chunks behind a past, single tokens, and one of `longest` tokens."""
    decode = ((0, 1), (15, 1), (16, 1), (longest // 8, 1), (longest - 1, 1))
    mixed = ((0, 37), (longest // 8, 1), (longest // 16, 65), (longest // 2, 1), (3, 20), (0, 1))
    return [
        Case(decode, num_heads=32, num_kv_heads=8),
        Case(mixed, num_heads=32, num_kv_heads=8),
        Case(mixed, head_dim=64, num_heads=12, num_kv_heads=4, dtype=torch.float32),
        Case(decode, head_dim=64, num_heads=12, num_kv_heads=4, dtype=torch.float32),
        Case(mixed, sliding_window=100),
        Case(decode, sliding_window=100),
        Case(mixed, head_dim=256, num_heads=8, num_kv_heads=4, softcap=50.0),
        Case(mixed, block_size=256, dtype=torch.float16),
        Case(mixed, head_dim=96, num_heads=8, num_kv_heads=8, block_size=32),
        Case(mixed, head_dim=80, num_heads=8, num_kv_heads=1),
    ]


def check_attention(checks: Checks, scale: Scale, device: torch.device, ends_at_s: float) -> None:
    """All cases, each on all backends, as long as the part has more than `ends_at_s` seconds left."""
    for name in BACKENDS:
        if name not in _usual_order(device):
            checks.absent(name, "not on this machine")
    for number, case in enumerate(cases(scale.long_context)):
        if checks.part.left_s < ends_at_s:
            checks.left_out("attention", f"no time for cases from the {number + 1}. on", str(case))
            return
        _check_case(checks, case, device, number)


def _order(case: Case, device: torch.device) -> list[str]:
    """The backends that say they serve a case here."""
    needs = AttentionCase(
        device.type == "cuda",
        case.dtype,
        frozenset({case.head_dim}),
        case.block_size,
        has_softcap=case.softcap is not None,
        has_window=case.sliding_window is not None,
    )
    return attention_order(needs, installed())


def _usual_order(device: torch.device) -> list[str]:
    return _order(Case((), block_size=256), device)


def _check_case(checks: Checks, case: Case, device: torch.device, seed: int) -> None:
    random = torch.Generator().manual_seed(seed)
    past_lens = [past + new for past, new in case.rows]
    tables = random_tables(past_lens, case.block_size, seed)
    batch, num_blocks = ragged_batch(case.rows, case.block_size, device, tables)
    shape = (case.num_kv_heads, case.head_dim)
    keys, values = (
        [torch.randn(length, *shape, generator=random).to(case.dtype) for length in past_lens] for _ in range(2)
    )
    lens = [new for _, new in case.rows]
    query = torch.randn(sum(lens), case.num_heads, case.head_dim, generator=random).to(case.dtype)
    scale = case.head_dim**-0.5
    limits: dict[str, Any] = {"sliding_window": case.sliding_window, "softcap": case.softcap}
    rows = zip(torch.split(query, lens), keys, values, strict=True)
    expected = torch.cat([reference.attention(own, key, value, scale, **limits) for own, key, value in rows])
    key_cache, value_cache = (
        _scatter(states, batch, num_blocks, case.block_size).to(device) for states in (keys, values)
    )

    for name in _order(case, device):

        def measured(name: str = name) -> float:
            backend = make_attention(name, device, installed())
            output = backend.begin(batch, case.block_size).attend(
                query.to(device), key_cache, value_cache, scale, **limits
            )
            return reference.error(output, expected)

        checks.error(name, str(case), measured, LIMITS[case.dtype])


def _scatter(rows: Sequence[torch.Tensor], batch: PagedBatch, num_blocks: int, block_size: int) -> torch.Tensor:
    """[num_blocks, block_size, heads, head_dim] with each row's states where its table says; NaN elsewhere."""
    cache = rows[0].new_full((num_blocks, block_size, *rows[0].shape[1:]), float("nan"))
    cache[0] = 0
    for states, table in zip(rows, batch.block_tables.cpu(), strict=True):
        places = torch.arange(len(states))
        cache[table[places // block_size].long(), places % block_size] = states
    return cache
