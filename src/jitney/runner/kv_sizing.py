"""How many KV blocks to allocate. Pure arithmetic: the free memory comes in as a number (see device/memory.py)."""

from jitney.config import EngineConfig
from jitney.errors import ConfigError
from jitney.models.base import ModelSpec

MEMORY_SHARE = 0.5
"""Most of the free memory that the KV cache takes unless told otherwise; the rest is for activations and others."""
MAX_AUTO_BYTES = 8 * 2**30
"""Most that the KV cache takes unless told otherwise: a CPU's seats are rarely worth more."""


def num_kv_blocks(spec: ModelSpec, config: EngineConfig, max_model_len: int, available_bytes: int) -> int:
    """Usable blocks of the KV cache; scratch block 0 is allocated on top and paid from the same memory.

    `config.num_kv_blocks` if given. Else enough for `max_num_seqs` requests of `max_model_len` tokens, within
    MEMORY_SHARE of `available_bytes` and MAX_AUTO_BYTES.

    Raises:
        ConfigError: the blocks do not hold one request of `max_model_len` tokens, or do not fit in the free memory.
    """
    block_bytes = spec.kv_bytes_per_token() * config.block_size
    one_request = -(-max_model_len // config.block_size)
    if config.num_kv_blocks is not None:
        check_holds_one_request(config.num_kv_blocks, config.block_size, max_model_len)
        _check_given(config.num_kv_blocks, block_bytes, available_bytes)
        return config.num_kv_blocks
    budget = _auto_budget(available_bytes)
    affordable = budget // block_bytes - 1
    if affordable < one_request:
        raise ConfigError(
            f"the KV cache cannot hold one request of max_model_len={max_model_len}: that takes {one_request} blocks "
            f"of block_size={config.block_size} and a scratch block, {_mib((one_request + 1) * block_bytes)}, and "
            f"{_mib(budget)} are allowed (half of the {_mib(available_bytes)} of free memory, at most "
            f"{_mib(MAX_AUTO_BYTES)}); lower max_model_len to {max(affordable, 0) * config.block_size} or less, use "
            "a smaller dtype, free memory, or set num_kv_blocks"
        )
    return min(affordable, config.max_num_seqs * one_request)


def resolve_max_model_len(spec: ModelSpec, config: EngineConfig, available_bytes: int) -> int:
    """Longest sequence in tokens: `config.max_model_len` if given, else all that the model and the KV cache allow.

    Raises:
        ConfigError: `config.max_model_len` is more than the model was made for, or not even one block can be afforded.
    """
    limit = longest_sequence(spec, config)
    if config.max_model_len is not None:
        return limit
    affordable = config.num_kv_blocks
    if affordable is None:
        affordable = _auto_budget(available_bytes) // (spec.kv_bytes_per_token() * config.block_size) - 1
    if affordable < 1:
        raise ConfigError(
            f"not even one KV block of block_size={config.block_size} tokens and a scratch block fit in "
            f"{_mib(_auto_budget(available_bytes))}, half of the free memory; lower block_size or free memory"
        )
    return min(limit, affordable * config.block_size)


def num_host_kv_blocks(spec: ModelSpec, config: EngineConfig, available_bytes: int) -> int:
    """Blocks of `config.swap_space`; `available_bytes` of host memory are free beside all else that is planned for.

    Raises:
        ConfigError: more than that is asked for, or less than one block.
    """
    wanted, block_bytes = int(config.swap_space * 2**30), spec.kv_bytes_per_token() * config.block_size
    if wanted > available_bytes:
        raise ConfigError(
            f"swap_space={config.swap_space} GiB is {_mib(wanted)}, and {_mib(available_bytes)} of host memory are "
            f"free beside the model and its KV cache; lower swap_space to {_floor_gib(available_bytes)} or less, or "
            "free memory"
        )
    if 0 < wanted < block_bytes:
        raise ConfigError(
            f"swap_space={config.swap_space} GiB holds not even one KV block of block_size={config.block_size} tokens, "
            f"{_mib(block_bytes)}; raise it, or set 0 to compute preempted requests again"
        )
    return wanted // block_bytes


def longest_sequence(spec: ModelSpec, config: EngineConfig) -> int:
    """`config.max_model_len` if given, else all that the model was made for, whatever the memory.

    Raises:
        ConfigError: `config.max_model_len` is more than the model was made for.
    """
    limit = spec.max_position_embeddings
    if config.max_model_len is not None and config.max_model_len > limit:
        raise ConfigError(
            f"max_model_len={config.max_model_len} is above the {limit} positions that {spec.name} was made for; "
            f"lower it to {limit} or less"
        )
    return config.max_model_len or limit


def check_holds_one_request(num_kv_blocks: int, block_size: int, max_model_len: int) -> None:
    """Raises ConfigError if a given number of blocks is less than one request of `max_model_len` tokens takes."""
    one_request = -(-max_model_len // block_size)
    if num_kv_blocks < one_request:
        raise ConfigError(
            f"num_kv_blocks={num_kv_blocks} of block_size={block_size} hold {num_kv_blocks * block_size} "
            f"tokens, less than one request of max_model_len={max_model_len}; raise num_kv_blocks to {one_request} "
            "or more, or lower max_model_len"
        )


def _auto_budget(available_bytes: int) -> int:
    return min(int(available_bytes * MEMORY_SHARE), MAX_AUTO_BYTES)


def _check_given(num_blocks: int, block_bytes: int, available: int) -> None:
    needed = (num_blocks + 1) * block_bytes
    if needed > available:
        raise ConfigError(
            f"num_kv_blocks={num_blocks} and a scratch block take {_mib(needed)}, and {_mib(available)} of memory are "
            f"free; lower num_kv_blocks to {max(available // block_bytes - 1, 0)} or less, or free memory"
        )


def _floor_gib(num_bytes: int) -> float:
    return num_bytes * 1000 // 2**30 / 1000


def _mib(num_bytes: int) -> str:
    return f"{num_bytes / 2**20:,.1f} MiB"
