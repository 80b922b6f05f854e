"""Every setting of the engine, each default written once. Flags, `--help` and the docs' table are derived from here."""

from dataclasses import dataclass, field
from typing import Any, Literal, get_args

from jitney.errors import ConfigError

DType = Literal["auto", "float32", "bfloat16", "float16"]
DeviceName = Literal["auto", "cuda", "cpu", "simulated"]
CpuKernels = Literal["auto", "native", "torch"]
BatchingPolicy = Literal["continuous", "static", "dynamic", "sequential"]
SchedulingPolicy = Literal["fcfs", "priority"]

MAX_DEPTH = 3
MAX_CPU_THREADS = 1024
MAX_PROMPT_LOGPROB_TOKENS = 512
"""Their logits are kept side by side in a step: float32 [512, V] is 250 MiB for a vocabulary of 128 thousand."""


def setting(default: Any, help: str) -> Any:
    """A dataclass field whose help text travels with it."""
    return field(default=default, metadata={"help": help})


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineConfig:
    """Settings of one engine. Raises ConfigError, naming the setting, when a value is wrong."""

    dtype: DType = setting(
        "auto",
        "Number format of weights and KV cache. auto: the checkpoint's own; on a CPU only if that is bfloat16 and the "
        "CPU has instructions for it, else float32. bfloat16 halves the memory; outputs may differ from float32's.",
    )
    device: DeviceName = setting("auto", "Where steps run. auto: the GPU if there is one, else the CPU.")
    cpu_kernels: CpuKernels = setting(
        "auto",
        "What computes on a CPU. auto: the native kernels where they serve the model, else torch. native: an error "
        "where they do not. torch: the reference, several times slower.",
    )
    cpu_threads: int | None = setting(
        None, "Threads of the native kernels. Default: the cores that this process may use. More than those slows down."
    )
    max_model_len: int | None = setting(
        None, "Longest prompt + output, in tokens. Default: what the model was made for and the KV cache can hold."
    )
    max_num_seqs: int = setting(
        64,
        "Seats: how many requests run at once. More raises throughput until memory or compute is full; "
        "each one's tokens then come slower.",
    )
    max_num_batched_tokens: int = setting(
        1024,
        "Most tokens in one step. Smaller keeps running streams smooth while long prompts come in; "
        "larger brings the first token of a long prompt sooner.",
    )
    enable_chunked_prefill: bool = setting(
        True, "Split long prompts over several steps, so that running requests never wait for a whole prompt."
    )
    prefill_chunk_size: int | None = setting(
        None,
        "Most prompt tokens of one request in one step (vLLM: long_prefill_token_threshold). "
        "Default: only the step's budget limits it.",
    )
    block_size: int = setting(16, "Tokens in one block of the paged KV cache.")
    num_kv_blocks: int | None = setting(
        None,
        "Blocks in the KV cache. Default: on a GPU all that gpu_memory_utilization leaves beside the largest step, "
        "measured at the start; on a CPU enough for all seats at full length, within half of the free memory and "
        "8 GiB.",
    )
    gpu_memory_utilization: float = setting(
        0.9,
        "Share of the GPU's memory for weights, activations and KV cache together. Higher holds more requests; "
        "leave room for what else runs on the GPU.",
    )
    swap_space: float = setting(
        0.0,
        "GiB of pinned host memory to which preempted requests' KV blocks are moved, instead of computing them again. "
        "Pays where prompts are long and the GPU's memory is short. Only continuous batching preempts.",
    )
    enforce_eager: bool = setting(
        False, "No CUDA graphs: the start is faster and memory is saved, each decode step costs the host more."
    )
    enable_prefix_caching: bool = setting(
        True, "Keep the KV blocks of past prompts and reuse them for requests that start alike."
    )
    async_scheduling: bool = setting(
        True, "Plan the next step while the device computes this one. Off: plan, compute, plan, compute."
    )
    max_steps_in_flight: int = setting(
        2,
        "Steps submitted before the first one's tokens are read, with async_scheduling (1 to 3). 2 hides the host; "
        "3 pays only where one step is shorter than planning one, and costs one more wasted row per stopped request.",
    )
    batching_policy: BatchingPolicy = setting(
        "continuous",
        "Who may enter when. continuous: a free seat is taken at the next step. static: a batch is "
        "closed until its last request ends. dynamic: wait for a window, then static. sequential: one at a time.",
    )
    dynamic_batching_window_s: float = setting(
        0.05, "Seconds the dynamic policy collects requests before it closes a batch."
    )
    scheduling_policy: SchedulingPolicy = setting(
        "fcfs", "Order of admission. fcfs: by arrival. priority: lowest `priority` number first, then by arrival."
    )
    seed: int = setting(0, "Base of the random seeds drawn for requests that bring none.")
    trust_remote_code: bool = setting(
        False, "Run Python code that ships with the model. Only for models whose code you have read."
    )

    def __post_init__(self) -> None:
        for name, choices in _CHOICES.items():
            if getattr(self, name) not in choices:
                raise ConfigError(f"{name}={getattr(self, name)!r} is unknown; choose one of {', '.join(choices)}")
        for name in ("max_num_seqs", "max_num_batched_tokens", "block_size"):
            _positive_integer(name, getattr(self, name))
        if self.max_steps_in_flight not in range(1, MAX_DEPTH + 1) or isinstance(self.max_steps_in_flight, bool):
            raise ConfigError(f"max_steps_in_flight must be 1 to {MAX_DEPTH}, got {self.max_steps_in_flight!r}")
        _number("gpu_memory_utilization", self.gpu_memory_utilization, 0.01, 1.0)
        _number("swap_space", self.swap_space, 0.0, 16384.0)
        for name in ("cpu_threads", "max_model_len", "prefill_chunk_size", "num_kv_blocks"):
            if getattr(self, name) is not None:
                _positive_integer(name, getattr(self, name))
        if self.cpu_threads is not None and self.cpu_threads > MAX_CPU_THREADS:
            raise ConfigError(f"cpu_threads={self.cpu_threads} is above {MAX_CPU_THREADS}; lower it to your cores")
        for name in _SWITCHES:
            if not isinstance(getattr(self, name), bool):
                raise ConfigError(f"{name} must be True or False, got {getattr(self, name)!r}")
        if isinstance(self.seed, bool) or not isinstance(self.seed, int) or not 0 <= self.seed < 2**63:
            raise ConfigError(f"seed must be an integer from 0 to 2**63 - 1, got {self.seed!r}")
        _number("dynamic_batching_window_s", self.dynamic_batching_window_s, 0, 3600)
        if self.max_num_batched_tokens < self.max_num_seqs:
            raise ConfigError(
                f"max_num_batched_tokens={self.max_num_batched_tokens} is below max_num_seqs={self.max_num_seqs}: "
                "every running request needs one token a step; raise the former or lower the latter"
            )
        if not self.enable_chunked_prefill and self.prefill_chunk_size is not None:
            raise ConfigError("prefill_chunk_size has no meaning with enable_chunked_prefill=False; drop one of them")
        if self.swap_space > 0 and self.batching_policy != "continuous":
            raise ConfigError(
                f"swap_space={self.swap_space} has no meaning with batching_policy={self.batching_policy}, which never "
                "preempts a request; set it to 0, or take continuous batching"
            )

    @property
    def depth(self) -> int:
        """Steps in flight at once: 1 is synchronous."""
        return self.max_steps_in_flight if self.async_scheduling else 1

    @property
    def num_slots(self) -> int:
        """Slots of device state: with steps in flight, a request that has left its seat keeps its slot for a while."""
        return self.max_num_seqs * self.depth

    @property
    def prompt_logprob_tokens(self) -> int:
        """Most tokens in one step of prompts whose logprobs are wanted; prompts that may not be split are whole."""
        most = self.max_num_batched_tokens
        return min(most, MAX_PROMPT_LOGPROB_TOKENS) if self.enable_chunked_prefill else most


_CHOICES = {
    "dtype": get_args(DType),
    "device": get_args(DeviceName),
    "cpu_kernels": get_args(CpuKernels),
    "batching_policy": get_args(BatchingPolicy),
    "scheduling_policy": get_args(SchedulingPolicy),
}
_SWITCHES = (
    "enable_chunked_prefill",
    "enable_prefix_caching",
    "async_scheduling",
    "enforce_eager",
    "trust_remote_code",
)


def _positive_integer(name: str, value: object) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ConfigError(f"{name} must be a positive integer, got {value!r}")


def _number(name: str, value: object, least: float, most: float) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not least <= value <= most:
        raise ConfigError(f"{name} must be a number from {least} to {most}, got {value!r}")
