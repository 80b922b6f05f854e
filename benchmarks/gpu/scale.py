"""How large everything is: `FULL` for a GPU of the H200's class, `TINY` for the same code on a CPU in a few seconds.

Real model shapes are written here, since nothing may be downloaded; the weights are random.
"""

from dataclasses import dataclass
from typing import Any

LLAMA_3_1_8B: dict[str, Any] = {
    "vocab_size": 128256,
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "max_position_embeddings": 131072,
    "rms_norm_eps": 1e-5,
    "rope_parameters": {
        "rope_type": "llama3",
        "rope_theta": 500000.0,
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    },
}
SMALL_LLAMA: dict[str, Any] = {
    "vocab_size": 32000,
    "hidden_size": 768,
    "intermediate_size": 2048,
    "num_hidden_layers": 12,
    "num_attention_heads": 12,
    "num_key_value_heads": 4,
    "max_position_embeddings": 4096,
    "initializer_range": 0.04,
}
"""About 124 million parameters. Initialised wider than usual, so that the best token is clearly the best."""
TINY_LLAMA: dict[str, Any] = {
    "vocab_size": 256,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "initializer_range": 0.2,
}


@dataclass(frozen=True, slots=True)
class Scale:
    """Sizes of all parts. Lengths in tokens."""

    shape: dict[str, Any]
    """transformers' LlamaConfig of the model that is timed."""
    dtype: str
    small_shape: dict[str, Any]
    """The model whose numbers are checked."""
    block_size: int
    num_seats: int
    max_num_batched_tokens: int
    num_requests: int
    prompt_len: int
    num_new_tokens: int
    """New tokens of each request of the headline workload."""
    num_points: int
    """Context lengths at which decode steps are measured."""
    steps_per_point: int
    peer_steps: int
    peer_contexts: tuple[int, ...]
    """Prompt lengths at which transformers is measured."""
    traffic_counts: tuple[int, ...]
    traffic_rate: float
    prompt_lengths: tuple[float, int, int]
    """Median, least, most (log-normal)."""
    output_lengths: tuple[float, int, int]
    prefill_len: int
    prefill_chunks: tuple[int, ...]
    check_lens: tuple[int, ...]
    """Prompt lengths of the numerical check."""
    check_tokens: int
    check_seats: int
    """Fewer than the requests (two for each length), so that seats change hands."""
    long_context: int
    """The longest row that attention is checked on."""
    copy_bytes: int
    matmul_size: int
    repeats: int

    @property
    def max_model_len(self) -> int:
        return self.prompt_len + self.num_new_tokens + 4 * self.block_size

    @property
    def num_kv_blocks(self) -> int:
        """All requests of the headline workload at their full length, and a few blocks more each."""
        return self.num_requests * (self.max_model_len // self.block_size + 8)


FULL = Scale(
    shape=LLAMA_3_1_8B,
    dtype="bfloat16",
    small_shape=SMALL_LLAMA,
    block_size=16,
    num_seats=64,
    max_num_batched_tokens=8192,
    num_requests=32,
    prompt_len=256,
    num_new_tokens=8192,
    num_points=6,
    steps_per_point=200,
    peer_steps=64,
    peer_contexts=(256, 1024, 4096),
    traffic_counts=(128, 256),
    traffic_rate=500.0,
    prompt_lengths=(192, 16, 1536),
    output_lengths=(96, 8, 512),
    prefill_len=8192,
    prefill_chunks=(1024, 2048, 4096, 8192),
    check_lens=(5, 33, 128, 700, 17, 64, 301, 1),
    check_tokens=32,
    check_seats=8,
    long_context=8192,
    copy_bytes=4 * 2**30,
    matmul_size=8192,
    repeats=10,
)
TINY = Scale(
    shape=TINY_LLAMA,
    dtype="float32",
    small_shape=TINY_LLAMA,
    block_size=16,
    num_seats=4,
    max_num_batched_tokens=64,
    num_requests=3,
    prompt_len=16,
    num_new_tokens=48,
    num_points=3,
    steps_per_point=8,
    peer_steps=8,
    peer_contexts=(16, 24),
    traffic_counts=(5, 6),
    traffic_rate=1000.0,
    prompt_lengths=(8, 4, 24),
    output_lengths=(6, 2, 12),
    prefill_len=64,
    prefill_chunks=(16, 64),
    check_lens=(5, 33, 1),
    check_tokens=6,
    check_seats=4,
    long_context=70,
    copy_bytes=2**20,
    matmul_size=64,
    repeats=2,
)
