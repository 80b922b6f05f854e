"""The fused decoder on a CPU through native code: weights packed once at load, one call a step, no interpreter lock.

The same DecoderConfig and the same sources of tensors as FusedDecoder; it is held against that one and against
transformers in the tests. Knows no step and no request.
"""

import ctypes
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from jitney.errors import ModelLoadError
from jitney.kernels.native.kv_cache import NativeKVCache
from jitney.kernels.native.library import (
    EMBEDDING,
    FINAL_NORM,
    HEAD,
    Matrix,
    ModelConfig,
    SampleArgs,
    Source,
    StepArgs,
    Type,
    Vector,
    library,
)
from jitney.models.base import LayerSpec, ModelSpec
from jitney.models.decoder import weights as names
from jitney.models.decoder.config import DecoderConfig
from jitney.models.decoder.weights import TensorSource, checked_targets
from jitney.types import Bool, Float32, Int32

GROUP = 16
"""Values that the native code takes at once: sizes must be multiples of it, and so must the KV cache's blocks."""
_TYPES = {torch.float32: Type.F32, torch.bfloat16: Type.BF16}
_SOURCES = {torch.float32: Source.F32, torch.float16: Source.F16, torch.bfloat16: Source.BF16}
_ACTIVATIONS = {"silu": 0, "gelu_tanh": 1}


def why_not_native(config: DecoderConfig, dtype: torch.dtype, block_size: int) -> str | None:
    """What keeps a model from the native path; None if nothing does."""
    if library() is None:
        return "this installation has no compiled kernels (it was installed without a C++ compiler)"
    if dtype not in _TYPES:
        return f"there are no native kernels for {str(dtype).removeprefix('torch.')}"
    if block_size % GROUP:
        return f"block_size={block_size} is no multiple of {GROUP}"
    if config.output_bias or config.mlp_bias:
        return "the model has biases after attention or in its MLP"
    sizes = (config.hidden_size, config.intermediate_size, config.head_dim)
    if any(size % GROUP for size in sizes) or config.head_dim > 512:
        return f"hidden_size, intermediate_size and head_dim are {sizes}: no multiples of {GROUP}, or heads over 512"
    return None


_VECTORS = {
    "input_layernorm.weight": Vector.INPUT_NORM,
    "post_attention_layernorm.weight": Vector.MLP_NORM,
    "pre_feedforward_layernorm.weight": Vector.MLP_NORM,
    "post_feedforward_layernorm.weight": Vector.AFTER_MLP_NORM,
    "self_attn.q_norm.weight": Vector.QUERY_NORM,
    "self_attn.k_norm.weight": Vector.KEY_NORM,
}


@dataclass(frozen=True, slots=True)
class NativeStep:
    """A ragged batch as C-contiguous int32 arrays; row r is the next lens[r] tokens of slot slots[r]."""

    num_decode_rows: int
    """They come first, have one token each, and read it from `last_tokens`."""
    slots: Int32
    """[R]"""
    positions: Int32
    """[R] of each row's first token in its sequence."""
    lens: Int32
    """[R]"""
    prompt_tokens: Int32
    """[T - num_decode_rows] tokens of the other rows, row after row."""
    last_tokens: Int32
    """[slots]"""
    tables: Int32
    """[slots, blocks] entries past a row's length are not looked at."""
    logits_tokens: Int32
    """[S] the tokens of the step whose logits are wanted."""


class NativeDecoder:
    """The forward pass over a ragged batch, and sampling, in native code on the CPU.

    Args:
        config: a model that `why_not_native` has nothing against.
        source: its tensors.
        dtype: of the weights, of what the products read, and of the KV cache. Sums are float32.
        num_threads: cores to use.
        isa: an instruction set by name ("generic", "avx2", "avx512", "avx512bf16"); default: the best one here.

    Raises ModelLoadError, naming the tensors, where the source does not hold what the config asks for.
    """

    spec: ModelSpec
    device = torch.device("cpu")
    supports_graphs = False

    def __init__(
        self, config: DecoderConfig, source: TensorSource, dtype: torch.dtype, num_threads: int, isa: str = ""
    ) -> None:
        loaded = library()
        if loaded is None:
            raise ModelLoadError("There are no native kernels in this installation; use cpu_kernels='torch'.")
        self._library = loaded
        self._handle = loaded.jitney_new(ctypes.byref(_native_config(config, dtype)), isa.encode(), num_threads)
        if not self._handle:
            raise ModelLoadError(
                f"The native decoder cannot be made with {num_threads} threads"
                f"{f' for {isa}' if isa else ''}: the system grants too few threads (lower cpu_threads), too little "
                "memory, or the processor lacks the instructions."
            )
        self._isa = loaded.jitney_isa(isa.encode()).decode()
        self._num_threads = num_threads
        self._config = config
        self._dtype = dtype
        self._logits = np.empty((0, config.vocab_size), np.float32)
        self._rotations = self._set_rotations()
        num_parameters = self._load(source)
        self.spec = ModelSpec(
            name=source.origin,
            architecture=config.architecture,
            vocab_size=config.vocab_size,
            max_position_embeddings=config.max_position_embeddings,
            dtype=dtype,
            layers=tuple(
                LayerSpec(config.num_kv_heads, config.head_dim, layer.sliding_window) for layer in config.layers
            ),
            num_parameters=num_parameters,
        )

    def __del__(self) -> None:
        if getattr(self, "_handle", None):
            self._library.jitney_free(self._handle)
            self._handle = None

    @property
    def way(self) -> str:
        """What computes it, in words."""
        return f"native kernels ({self._isa}, {self._num_threads} threads)"

    def allocate_kv_cache(self, num_blocks: int, block_size: int) -> NativeKVCache:
        """Room for `num_blocks` blocks, scratch block 0 included."""
        kind = np.uint16 if self._dtype is torch.bfloat16 else np.float32
        return NativeKVCache.allocate([self._config.kv_size] * len(self._config.layers), kind, num_blocks, block_size)

    def forward(self, step: NativeStep, cache: NativeKVCache) -> Float32:
        """One step: writes the tokens' keys and values, and computes the wanted logits.

        Returns:
            [S, vocab_size], valid until the next call.
        """
        logits = self._logits_buffer(len(step.logits_tokens))
        arguments = StepArgs(
            num_rows=len(step.slots),
            num_decode_rows=step.num_decode_rows,
            num_prompt_tokens=len(step.prompt_tokens),
            num_logits=len(logits),
            table_stride=step.tables.shape[1],
            block_size=cache.block_size,
            keys=ctypes.addressof(cache.key_pointers),
            values=ctypes.addressof(cache.value_pointers),
            slots=step.slots.ctypes.data,
            positions=step.positions.ctypes.data,
            lens=step.lens.ctypes.data,
            prompt_tokens=step.prompt_tokens.ctypes.data,
            last_tokens=step.last_tokens.ctypes.data,
            tables=step.tables.ctypes.data,
            logits_tokens=step.logits_tokens.ctypes.data,
            logits=logits.ctypes.data,
        )
        if self._library.jitney_forward(self._handle, ctypes.byref(arguments)):
            num_tokens = step.num_decode_rows + len(step.prompt_tokens)
            raise MemoryError(f"no memory for the activations of a step of {num_tokens} tokens")
        return logits

    def sample(
        self, logits: Float32, slots: Int32, positions: Int32, sampling: NDArray[np.void], last_tokens: Int32
    ) -> tuple[Int32, Bool]:
        """Choose a token for each row and write it to `last_tokens`.

        Args:
            logits: [S, vocab_size]
            slots, positions: [S] of each row; the position is that of the token to be sampled.
            sampling: [slots] SLOT_SAMPLING
            last_tokens: [slots]

        Returns:
            [S] token ids, the lowest of the most likely ones for greedy rows; and [S] bool: False where the logits
            held NaN or +inf, or nothing but -inf.
        """
        token_ids, is_valid = np.empty(len(logits), np.int32), np.empty(len(logits), np.bool_)
        arguments = SampleArgs(
            num_rows=len(logits),
            vocab=logits.shape[1],
            logits=logits.ctypes.data,
            slots=slots.ctypes.data,
            positions=positions.ctypes.data,
            sampling=sampling.ctypes.data,
            last_tokens=last_tokens.ctypes.data,
            tokens=token_ids.ctypes.data,
            is_valid=is_valid.ctypes.data,
        )
        if self._library.jitney_sample(self._handle, ctypes.byref(arguments)):
            raise MemoryError(f"no memory to sample {len(logits)} tokens")
        return token_ids, is_valid

    def _logits_buffer(self, count: int) -> Float32:
        """[count, vocab_size]; the same memory every time, for fresh pages cost more than they seem."""
        if count > len(self._logits):
            self._logits = np.empty((count, self._config.vocab_size), np.float32)
        return self._logits[:count]

    def _set_rotations(self) -> list[tuple[torch.Tensor, torch.Tensor]]:
        """Give each layer its tables; they live as long as the model."""
        config = self._config
        tables = {rope: rope.tables(config.max_position_embeddings, self.device) for rope in config.ropes}
        for index, layer in enumerate(config.layers):
            cos, sin = tables[layer.rope]
            self._library.jitney_attention(
                self._handle, index, cos.data_ptr(), sin.data_ptr(), layer.sliding_window or 0
            )
        return list(tables.values())

    def _load(self, source: TensorSource) -> int:
        """Pack every tensor of the source; returns how many numbers the model has."""
        _, targets = checked_targets(self._config, source, self._dtype, torch.device("meta"))
        is_tied = not (names.HEAD in targets and names.EMBEDDING in targets)
        if not is_tied and self._library.jitney_untie(self._handle):
            raise ModelLoadError(f"{source.origin}: no memory for an embedding beside the head.")
        biases = np.zeros((len(self._config.layers), self._config.query_size + 2 * self._config.kv_size), np.float32)
        for name, tensor in source.tensors():
            if name in targets:
                self._take(name, tensor.contiguous(), biases, is_tied)
        if self._config.qkv_bias:
            for index, bias in enumerate(biases):
                self._set_vector(index, Vector.QKV_BIAS, bias)
        return sum(target.numel() for target in targets.values())

    def _take(self, name: str, tensor: torch.Tensor, biases: NDArray[np.float32], is_tied: bool) -> None:
        if name in (names.HEAD, names.EMBEDDING):
            which = EMBEDDING if name == names.EMBEDDING and not is_tied else HEAD
            return self._pack(-1, which, tensor, np.arange(len(tensor), dtype=np.int32))
        if name == "model.norm.weight":
            return self._set_vector(-1, FINAL_NORM, tensor.float().numpy())
        layer, _, part = name.removeprefix("model.layers.").partition(".")
        if part.endswith("norm.weight"):
            return self._set_vector(int(layer), _vector(self._config, part), tensor.float().numpy())
        *_, module, kind = part.split(".")
        matrix, columns = _columns(self._config, module, len(tensor))
        if kind == "bias":
            biases[int(layer), columns] = tensor.float().numpy()
            return None
        return self._pack(int(layer), matrix, tensor, columns)

    def _pack(self, layer: int, matrix: int, tensor: torch.Tensor, columns: NDArray[np.int32]) -> None:
        source = _SOURCES[tensor.dtype]
        pointer = columns.ctypes.data
        failed = self._library.jitney_pack(self._handle, layer, matrix, tensor.data_ptr(), source, len(tensor), pointer)
        if failed:
            raise ModelLoadError("There is no memory left to pack the weights in.")

    def _set_vector(self, layer: int, vector: int, values: NDArray[np.float32]) -> None:
        values = np.ascontiguousarray(values)
        if self._library.jitney_vector(self._handle, layer, vector, values.ctypes.data, len(values)):
            raise ModelLoadError("There is no memory left for the weights.")


def _vector(config: DecoderConfig, part: str) -> Vector:
    if part == "post_attention_layernorm.weight" and config.has_post_norms:
        return Vector.AFTER_ATTENTION_NORM
    return _VECTORS[part]


def _columns(config: DecoderConfig, module: str, rows: int) -> tuple[Matrix, NDArray[np.int32]]:
    """Which packed matrix a checkpoint's tensor belongs to, and which of its columns the tensor's rows become."""
    columns = np.arange(rows, dtype=np.int32)
    starts = {"q_proj": 0, "k_proj": config.query_size, "v_proj": config.query_size + config.kv_size}
    if module in starts:
        return Matrix.QKV, columns + np.int32(starts[module])
    if module in ("gate_proj", "up_proj"):  # 16 columns of the gate, then the 16 of up that go with them
        interleaved = columns // GROUP * (2 * GROUP) + columns % GROUP
        return Matrix.GATE_UP, interleaved + np.int32(GROUP if module == "up_proj" else 0)
    return (Matrix.OUT if module == "o_proj" else Matrix.DOWN), columns


def _native_config(config: DecoderConfig, dtype: torch.dtype) -> ModelConfig:
    # The factor is rounded to the model's dtype before it is used, as the model was trained.
    multiplier = torch.tensor(config.embedding_multiplier).to(dtype).item()
    return ModelConfig(
        type=_TYPES[dtype],
        num_layers=len(config.layers),
        hidden=config.hidden_size,
        num_heads=config.num_heads,
        num_kv_heads=config.num_kv_heads,
        head_dim=config.head_dim,
        intermediate=config.intermediate_size,
        vocab=config.vocab_size,
        rotary_half=config.head_dim // 2,
        activation=_ACTIVATIONS[config.activation],
        sandwich_norms=config.has_post_norms,
        qk_norm=config.has_qk_norm,
        qkv_bias=config.qkv_bias,
        norm_eps=config.norm_eps,
        norm_offset=config.norm_offset,
        query_scale=config.attention_scale,
        attention_softcap=config.attention_softcap or 0.0,
        logit_softcap=config.logit_softcap or 0.0,
        embedding_scale=multiplier,
    )
