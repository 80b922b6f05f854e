"""Compile the attention kernels for compute capability 9.0; needs no GPU. Prints one JSON line per kernel and case.

A program of its own: in the tests' process Triton is set to interpret. Triton's wheel carries ptxas and cuobjdump.
"""

import json
import re
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from jitney.kernels.triton import attention
from jitney.kernels.triton.paged_attention import ragged_kernel
from jitney.kernels.triton.split_decode import decode_kernel, merge_kernel

TYPES = {torch.bfloat16: "bf16", torch.float32: "fp32"}
HOPPER = GPUTarget("cuda", 90, 32)
CASES: list[dict[str, Any]] = [
    {"dtype": torch.bfloat16, "head_dim": 128, "group": 4},
    {"dtype": torch.bfloat16, "head_dim": 80, "group": 5, "has_sinks": True},
    {"dtype": torch.bfloat16, "head_dim": 256, "group": 2, "sliding_window": 512, "softcap": 50.0},
    {"dtype": torch.float32, "head_dim": 128, "group": 4},
]


def compile_case(
    kernel: Any,
    dtype: torch.dtype,
    head_dim: int,
    group: int,
    has_sinks: bool = False,
    sliding_window: int | None = None,
    softcap: float | None = None,
) -> dict[str, Any]:
    cache = torch.empty(2, 16, 2, head_dim, dtype=dtype, device="meta")
    query = torch.empty(3, 2 * group, head_dim, dtype=dtype, device="meta")
    shape = attention._kernel_shape(query, cache, cache, has_sinks, sliding_window, softcap)
    tile = attention._decode_tile if kernel is decode_kernel else attention._ragged_tile
    launch = {"num_warps": 4} if kernel is merge_kernel else tile(dtype, group, shape["HEAD_DIM_PAD"])
    known = {**shape, **launch, "NUM_HEADS": 2 * group}
    constants = {name: known[name] for name in kernel.arg_names if name in known}
    signature = {name: "constexpr" if name in constants else _type(name, TYPES[dtype]) for name in kernel.arg_names}
    aligned = [i for i, name in enumerate(kernel.arg_names) if signature[name] == f"*{TYPES[dtype]}"]
    compiled = triton.compile(
        ASTSource(kernel, signature, constants, {(i,): [["tt.divisibility", 16]] for i in aligned}),
        target=HOPPER,
        options={name: value for name, value in launch.items() if name.startswith("num_")},
    )
    return {"kernel": kernel.__name__, "shared": compiled.metadata.shared, "stack": _stack(compiled.asm["cubin"])}


def _type(name: str, dtype: str) -> str:
    if name in ("output", "query", "key_cache", "value_cache", "sinks"):
        return f"*{dtype}"
    if name.startswith("partial"):
        return "*fp32"
    if name in ("query_starts", "context_lens", "block_tables"):
        return "*i32"
    return "fp32" if name == "scale" else "i32"


def _stack(cubin: bytes) -> int:
    """Bytes of registers spilled per thread."""
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        tool = Path(triton.__file__).parent / "backends/nvidia/bin/cuobjdump"
        usage = subprocess.run([tool, "-res-usage", file.name], capture_output=True, text=True, check=True).stdout
    found = re.search(r"STACK:(\d+)", usage)
    assert found, usage
    return int(found[1])


if __name__ == "__main__":
    for case in CASES:
        for kernel in (decode_kernel, ragged_kernel, merge_kernel):
            print(json.dumps({**compile_case(kernel, **case), "case": str(case)}), flush=True)
