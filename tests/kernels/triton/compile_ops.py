"""Compile the kernels of the small operations for compute capability 9.0; needs no GPU. Prints their names.

A program of its own: in the tests' process Triton is set to interpret.
"""

from typing import Any

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from jitney.kernels.triton import greedy, top_k_top_p
from jitney.kernels.triton.activation import gated_activation_kernel
from jitney.kernels.triton.norm import rms_norm_kernel
from jitney.kernels.triton.rope import rope_and_write_kv_kernel

HOPPER = GPUTarget("cuda", 90, 32)
FLOAT32 = ("cos", "sin", "peaks")
OTHERS = {
    "dropped": "*i1",
    "all_top_k": "*i64",
    "all_top_p": "*fp64",
    "positions": "*i64",
    "kv_index": "*i64",
    "token_ids": "*i64",
    "places": "*i32",
    "is_valid": "*i1",
}
NORM = {"INNER": 1, "SIZE": 4096, "BLOCK_ROWS": 1, "BLOCK_SIZE": 4096}
HEADS = {"INNER": 32, "SIZE": 128, "HAS_RESIDUAL": False, "BLOCK_ROWS": 8, "BLOCK_SIZE": 128}
ROPE = {"NUM_HEADS": 32, "NUM_KV_HEADS": 8, "BLOCK_HEADS": 8}
CASES: list[tuple[Any, dict[str, Any], int]] = [
    (rms_norm_kernel, {**NORM, "HAS_RESIDUAL": False}, 8),
    (rms_norm_kernel, {**NORM, "HAS_RESIDUAL": True}, 8),
    (rms_norm_kernel, HEADS, 4),
    *((rope_and_write_kv_kernel, {**ROPE, "HALF": half, "SIZE": size}, 4) for half, size in [(64, 128), (20, 80)]),
    *((gated_activation_kernel, {"SIZE": 14336, "IS_SILU": silu, "BLOCK_SIZE": 1024}, 4) for silu in (True, False)),
    (greedy._split_kernel, {"VOCAB_SIZE": 128256, "SPLIT": 4096}, 4),
    (greedy._merge_kernel, {"NUM_SPLITS": 32, "NUM_SPLITS_PAD": 32}, 1),
]


def type_of(name: str, dtype: str) -> str:
    if name in OTHERS:
        return OTHERS[name]
    if name in FLOAT32:
        return "*fp32"
    if name in ("eps", "offset"):
        return "fp32"
    return "i32" if name.endswith("stride") or name == "num_rows" else f"*{dtype}"


def compile_case(kernel: Any, constants: dict[str, Any], num_warps: int, dtype: str) -> Any:
    signature = {name: "constexpr" if name in constants else type_of(name, dtype) for name in kernel.arg_names}
    aligned = [i for i, name in enumerate(kernel.arg_names) if signature[name].startswith("*") or "stride" in name]
    source = ASTSource(kernel, signature, constants, {(i,): [["tt.divisibility", 16]] for i in aligned})
    return triton.compile(source, target=HOPPER, options={"num_warps": num_warps})


if __name__ == "__main__":
    for dtype in ("bf16", "fp16", "fp32"):
        for kernel, constants, num_warps in CASES:
            compile_case(kernel, constants, num_warps, dtype)
            print(kernel.__name__, dtype, flush=True)
    compile_case(top_k_top_p._drop_mask_kernel, {"VOCAB_SIZE": 128256, "TILE": 8192}, 16, "fp32")
    print("_drop_mask_kernel fp32")
