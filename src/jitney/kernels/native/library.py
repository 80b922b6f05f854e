"""The native library through ctypes: its structs, its functions, and how it is found. Knows no model family."""

import ctypes
import importlib.util
import logging
import os
from ctypes import POINTER, Structure, c_char_p, c_float, c_int32, c_int64, c_void_p
from enum import IntEnum
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

logger = logging.getLogger(__name__)

LIBRARY = "libjitney_native.so"


class Type(IntEnum):
    """csrc/panels.h Type."""

    F32 = 0
    BF16 = 1


class Source(IntEnum):
    """csrc/pack.h Source: how a checkpoint stores a tensor."""

    F32 = 0
    F16 = 1
    BF16 = 2


class Matrix(IntEnum):
    """The packed matrices of a layer."""

    QKV = 0
    OUT = 1
    GATE_UP = 2
    DOWN = 3


HEAD, EMBEDDING, FINAL_NORM = 0, 1, 0
"""What belongs to no layer (layer -1): two matrices and a vector."""


class Vector(IntEnum):
    """The float32 vectors of a layer."""

    INPUT_NORM = 0
    AFTER_ATTENTION_NORM = 1
    MLP_NORM = 2
    AFTER_MLP_NORM = 3
    QUERY_NORM = 4
    KEY_NORM = 5
    QKV_BIAS = 6


class ModelConfig(Structure):
    """csrc/model.h ModelConfig."""

    _fields_ = [
        *((name, c_int32) for name in (
            "type", "num_layers", "hidden", "num_heads", "num_kv_heads", "head_dim", "intermediate", "vocab",
            "rotary_half", "activation", "sandwich_norms", "qk_norm", "qkv_bias",
        )),
        *((name, c_float) for name in (
            "norm_eps", "norm_offset", "query_scale", "attention_softcap", "logit_softcap", "embedding_scale",
        )),
    ]  # fmt: skip


class StepArgs(Structure):
    """csrc/model.h StepArgs."""

    _fields_ = [
        *((name, c_int64) for name in (
            "num_rows", "num_decode_rows", "num_prompt_tokens", "num_logits", "table_stride", "block_size",
        )),
        *((name, c_void_p) for name in (
            "keys", "values", "slots", "positions", "lens", "prompt_tokens", "last_tokens", "tables", "logits_tokens",
            "logits",
        )),
    ]  # fmt: skip


class SampleArgs(Structure):
    """csrc/model.h SampleArgs."""

    _fields_ = [
        *((name, c_int64) for name in ("num_rows", "vocab")),
        *((name, c_void_p) for name in (
            "logits", "slots", "positions", "sampling", "last_tokens", "tokens", "is_valid",
        )),
    ]  # fmt: skip


SLOT_SAMPLING = np.dtype(
    [
        ("top_p", np.float64),
        ("stream", np.uint64),
        ("temperature", np.float32),
        ("log_min_p", np.float32),
        ("top_k", np.int32),
        ("is_random", np.int32),
    ]
)
"""csrc/model.h SlotSampling."""


_FUNCTIONS: dict[str, tuple[list[Any], Any]] = {
    "jitney_isa": ([c_char_p], c_char_p),
    "jitney_new": ([POINTER(ModelConfig), c_char_p, c_int32], c_void_p),
    "jitney_free": ([c_void_p], None),
    "jitney_untie": ([c_void_p], c_int32),
    "jitney_pack": ([c_void_p, c_int32, c_int32, c_void_p, c_int32, c_int64, c_void_p], c_int32),
    "jitney_vector": ([c_void_p, c_int32, c_int32, c_void_p, c_int64], c_int32),
    "jitney_attention": ([c_void_p, c_int32, c_void_p, c_void_p, c_int64], None),
    "jitney_forward": ([c_void_p, POINTER(StepArgs)], c_int32),
    "jitney_sample": ([c_void_p, POINTER(SampleArgs)], c_int32),
}


@cache
def library() -> ctypes.CDLL | None:
    """The compiled library; None if this installation has none (no compiler at install time).

    JITNEY_NATIVE_LIBRARY names another file to open, such as one built with sanitizers.
    """
    if other := os.environ.get("JITNEY_NATIVE_LIBRARY"):
        return _open(Path(other))
    spec = importlib.util.find_spec(__package__)
    places = [] if spec is None else spec.submodule_search_locations or []
    for place in places:
        path = Path(place) / LIBRARY
        if path.exists():
            try:
                return _open(path)
            except (OSError, AttributeError) as error:
                logger.warning("the native kernels in %s cannot be opened, torch computes instead: %s", path, error)
                return None
    logger.warning("this installation has no native kernels (no C++20 compiler was found), torch computes instead")
    return None


def _open(path: Path) -> ctypes.CDLL:
    loaded = ctypes.CDLL(str(path))
    for name, (arguments, result) in _FUNCTIONS.items():
        function = getattr(loaded, name)
        function.argtypes, function.restype = arguments, result
    return loaded


def has_bfloat16_instructions() -> bool:
    """Whether the best kernels here multiply bfloat16 in one instruction; the others widen it first."""
    loaded = library()
    return loaded is not None and loaded.jitney_isa(b"") == b"avx512bf16"
