"""How a GPU's memory is shared out: what a profile run has measured, and KV blocks in all that is left.

Pure arithmetic. Too little memory is an error at the start, with every number in it; never one under load.
"""

import math
from dataclasses import dataclass, replace

from jitney.config import EngineConfig
from jitney.errors import ConfigError
from jitney.models.base import ModelSpec
from jitney.runner.kv_sizing import check_holds_one_request
from jitney.runner.kv_swap import swap_device_bytes

GRAPH_BYTES = 8 * 2**20
"""What the driver keeps for one recorded step, besides its tensors. A guess, not measured yet."""
ROUNDING_BYTES = 2 * 2**20
"""Each tensor of the KV cache may take so much more: torch takes large memory in multiples of it."""
WORKSPACE_BYTES = 128 * 2**20
"""For matrix products on the compute stream and on the one that records graphs: cuBLAS and cuBLASLt may keep 32 MiB
each (on Hopper). The profile run's own are measured, on a third stream."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryProfile:
    """What a profile run measured (see profile_run.py). Bytes."""

    total: int
    """The device's memory."""
    weights: int
    """Weights, and the state of all slots."""
    activations: int
    """What the largest step takes on top, sampling included."""
    decode_activations: int
    """The same of the largest step that only decodes."""
    other: int
    """Taken by others: CUDA itself, libraries, other processes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryBudget:
    """Where a GPU's memory goes. Bytes, unless it says otherwise."""

    profile: MemoryProfile
    utilization: float
    graphs: int
    """Set aside for recorded decode steps."""
    slack: int
    """Workspaces of streams, staging of swapped blocks, and the most that the allocator may add to the KV cache."""
    block_bytes: int
    block_size: int
    """Tokens."""
    num_kv_blocks: int
    """Usable ones; scratch block 0 comes on top."""
    max_model_len: int
    """Tokens."""

    @property
    def allowed(self) -> int:
        return int(self.profile.total * self.utilization)

    @property
    def left(self) -> int:
        """What the KV cache may take; negative if there is not even room for the rest."""
        profile = self.profile
        taken = profile.weights + profile.activations + profile.other + self.graphs + self.slack
        return self.allowed - taken

    @property
    def kv_cache(self) -> int:
        return (self.num_kv_blocks + 1) * self.block_bytes

    @property
    def num_kv_tokens(self) -> int:
        return self.num_kv_blocks * self.block_size

    @property
    def num_full_requests(self) -> float:
        """Requests of `max_model_len` tokens that fit at once."""
        return self.num_kv_tokens / self.max_model_len

    def summary(self) -> str:
        """One line for the banner."""
        return (
            f"{self.parts()}, KV cache {_gib(self.kv_cache)} = {self.num_kv_tokens:,} tokens, "
            f"{self.num_full_requests:.1f} requests of max_model_len={self.max_model_len:,}"
        )

    def parts(self) -> str:
        """What is taken before the KV cache."""
        profile = self.profile
        return (
            f"GPU memory {_gib(profile.total)} x gpu_memory_utilization={self.utilization} = {_gib(self.allowed)}: "
            f"weights {_gib(profile.weights)}, activations {_gib(profile.activations)}, "
            f"CUDA and other processes {_gib(profile.other)}, graphs {_gib(self.graphs)}, "
            f"slack {_gib(self.slack)}"
        )


def plan_memory(profile: MemoryProfile, spec: ModelSpec, config: EngineConfig, num_graphs: int) -> MemoryBudget:
    """Share the memory out: `config.num_kv_blocks` blocks if given, else as many as there is room for.

    Args:
        profile: measured with these very settings.
        num_graphs: batch sizes whose decode step will be recorded.

    Raises:
        ConfigError: one request of `config.max_model_len` tokens (one block, if that is not given) does not fit, or
            the given blocks do not.
    """
    graphs = 0
    if num_graphs > 0:  # one pool for the tensors of all, the same again for the runs before recording, and logits
        logits = config.max_num_seqs * spec.vocab_size * 4
        graphs = num_graphs * GRAPH_BYTES + 2 * profile.decode_activations + logits
    block_bytes = spec.kv_bytes_per_token() * config.block_size
    swapping = swap_device_bytes(int(config.swap_space * 2**30), block_bytes)
    budget = MemoryBudget(
        profile=profile,
        utilization=config.gpu_memory_utilization,
        graphs=graphs,
        slack=WORKSPACE_BYTES + swapping + 2 * len(spec.layers) * ROUNDING_BYTES,
        block_bytes=block_bytes,
        block_size=config.block_size,
        num_kv_blocks=0,
        max_model_len=config.max_model_len or config.block_size,
    )
    num_blocks = _num_blocks(budget, config)
    longest = config.max_model_len or min(spec.max_position_embeddings, num_blocks * config.block_size)
    return replace(budget, num_kv_blocks=num_blocks, max_model_len=longest)


def _num_blocks(budget: MemoryBudget, config: EngineConfig) -> int:
    affordable = budget.left // budget.block_bytes - 1
    if config.num_kv_blocks is not None:
        check_holds_one_request(config.num_kv_blocks, config.block_size, budget.max_model_len)
        if affordable < config.num_kv_blocks:
            raise ConfigError(_too_many_blocks(budget, config.num_kv_blocks, affordable))
        return config.num_kv_blocks
    if affordable < -(-budget.max_model_len // config.block_size):
        raise ConfigError(_too_little_memory(budget, config, affordable))
    return affordable


def _too_many_blocks(budget: MemoryBudget, num_blocks: int, affordable: int) -> str:
    advice = f"lower num_kv_blocks to {affordable} or less" if affordable > 0 else "there is no room for any"
    return (
        f"num_kv_blocks={num_blocks} and a scratch block take {_gib((num_blocks + 1) * budget.block_bytes)}, and "
        f"{_gib(max(budget.left, 0))} are left; {advice}. {budget.parts()}"
    )


def _too_little_memory(budget: MemoryBudget, config: EngineConfig, affordable: int) -> str:
    length = budget.max_model_len
    needed = (-(-length // budget.block_size) + 1) * budget.block_bytes
    what = f"one request of max_model_len={length:,} tokens" if config.max_model_len else "one KV block"
    advice = []
    share = math.ceil(100 * (budget.allowed - budget.left + needed) / budget.profile.total) / 100
    if share <= 1:
        advice.append(f"raise gpu_memory_utilization to {share} or more, if nothing else runs on the GPU")
    if affordable > 0:
        advice.append(f"lower max_model_len to {affordable * budget.block_size:,} or less")
    advice.append(f"lower max_num_batched_tokens (now {config.max_num_batched_tokens:,}) for smaller activations")
    advice.append(f"choose a smaller dtype (now {config.dtype}), or free memory that other processes hold")
    return (
        f"too little GPU memory: {what} and a scratch block take {_gib(needed)} of KV cache, and "
        f"{_gib(max(budget.left, 0))} are left. {budget.parts()}. What helps: {'; '.join(advice)}"
    )


def _gib(num_bytes: int) -> str:
    return f"{num_bytes / 2**30:,.2f} GiB"
