"""From what a caller asks to requests the engine can run, or a clear refusal at the door."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from hashlib import blake2b

import numpy as np

from jitney.config import EngineConfig
from jitney.errors import ConfigError, RequestError
from jitney.sampling_params import MAX_SEED, SamplingParams
from jitney.types import Int32, Request


@dataclass(frozen=True, slots=True)
class EngineLimits:
    """What the model and the memory allow. Lengths in tokens."""

    vocab_size: int
    max_model_len: int
    num_kv_blocks: int
    eos_token_ids: tuple[int, ...] = ()
    num_host_kv_blocks: int = 0
    """Blocks of host memory for the KV of preempted requests."""


def resolve_limits(
    config: EngineConfig,
    *,
    vocab_size: int,
    max_position_embeddings: int,
    num_kv_blocks: int,
    eos_token_ids: Iterable[int] = (),
    num_host_kv_blocks: int = 0,
) -> EngineLimits:
    """Fit the settings to the model and the KV cache. Raises ConfigError when they contradict each other."""
    capacity = num_kv_blocks * config.block_size
    longest = config.max_model_len
    if longest is None:
        longest = min(max_position_embeddings, capacity)
    elif longest > max_position_embeddings:
        raise ConfigError(f"max_model_len={longest} is above the {max_position_embeddings} positions the model knows")
    elif longest > capacity:
        raise ConfigError(
            f"max_model_len={longest} does not fit the KV cache of {num_kv_blocks} blocks x {config.block_size} = "
            f"{capacity} tokens; raise num_kv_blocks or lower max_model_len"
        )
    needed = longest + config.max_num_seqs - 1
    if not config.enable_chunked_prefill and config.max_num_batched_tokens < needed:
        raise ConfigError(
            f"without chunked prefill max_num_batched_tokens={config.max_num_batched_tokens} must be at least "
            f"max_model_len + max_num_seqs - 1 = {needed}, so that the longest prompt always finds a step; "
            "raise it, lower max_model_len, or turn chunked prefill on"
        )
    return EngineLimits(vocab_size, longest, num_kv_blocks, tuple(eos_token_ids), num_host_kv_blocks)


def make_requests(
    request_id: str,
    prompt_token_ids: Sequence[int] | Int32,
    params: SamplingParams,
    limits: EngineLimits,
    *,
    engine_seed: int,
    priority: int = 0,
    cache_salt: str = "",
) -> list[Request]:
    """The `params.n` requests (ids `request_id`, or `request_id#0`, `request_id#1`, ...) of one prompt.

    Raises:
        RequestError: the prompt or a parameter does not fit; the message has the numbers, `.field` the name.
    """
    if not isinstance(params, SamplingParams):
        raise RequestError(f"sampling_params must be a SamplingParams, got {type(params).__name__}", "sampling_params")
    if isinstance(priority, bool) or not isinstance(priority, int) or not -(2**31) <= priority < 2**31:
        raise RequestError(f"priority must be an integer of 32 bits, got {priority!r}", "priority")
    _check_name("request_id", request_id)
    _check_name("cache_salt", cache_salt)
    prompt = _prompt_array(prompt_token_ids, limits.vocab_size)
    max_tokens = _resolve_max_tokens(len(prompt), params.max_tokens, limits.max_model_len)
    if params.min_tokens > max_tokens:
        raise RequestError(f"min_tokens={params.min_tokens} is above the {max_tokens} tokens left", "min_tokens")
    _check_token_ids(params, limits.vocab_size)
    stop = set(params.stop_token_ids) | (set() if params.ignore_eos else set(limits.eos_token_ids))
    _check_choice(params, stop, limits.vocab_size)
    # The prompt's logprobs are the same for every output; computing them costs the prefix cache, so the first does it.
    others = replace(params, prompt_logprobs=None)
    seed = params.seed if params.seed is not None else _derive_seed(engine_seed, request_id)
    return [
        Request(
            request_id=request_id if params.n == 1 else f"{request_id}#{index}",
            prompt_token_ids=prompt,
            params=params if index == 0 else others,
            max_tokens=max_tokens,
            stop_token_ids=tuple(sorted(stop)),
            seed=seed if index == 0 else _derive_seed(seed, str(index)),
            priority=priority,
            cache_salt=cache_salt,
        )
        for index in range(params.n)
    ]


def check_fits(request: Request, limits: EngineLimits, block_size: int) -> None:
    """Refuse what could never run: prompt and outputs (the last of which is never computed) must fit the KV cache."""
    longest = request.num_prompt_tokens + request.max_tokens
    if request.num_prompt_tokens < 1 or request.max_tokens < 1 or longest > limits.max_model_len:
        raise RequestError(
            f"request {request.request_id}: prompt ({request.num_prompt_tokens}) + max_tokens ({request.max_tokens}) "
            f"must be at most max_model_len ({limits.max_model_len}), and each at least 1",
            "max_tokens",
        )
    if -(-(longest - 1) // block_size) > limits.num_kv_blocks:
        raise RequestError(
            f"request {request.request_id} needs {longest - 1} tokens of KV cache, which holds "
            f"{limits.num_kv_blocks * block_size}; shorten it or raise num_kv_blocks",
            "max_tokens",
        )


def _check_name(field: str, name: object) -> None:
    """Names are hashed and written to files, so they must be encodable: no lone surrogates."""
    if not isinstance(name, str):
        raise RequestError(f"{field} must be a string, got {name!r}", field)
    try:
        name.encode("utf-8")
    except UnicodeEncodeError as error:
        raise RequestError(f"{field} is not valid Unicode: {error}; remove lone surrogates", field) from error


def _prompt_array(prompt: object, vocab_size: int) -> Int32:
    if isinstance(prompt, str | bytes) or not isinstance(prompt, Sequence | np.ndarray):
        raise RequestError(f"prompt_token_ids must be a list of token ids, got {type(prompt).__name__}", "prompt")
    try:
        array = np.asarray(prompt)
    except ValueError:
        array = np.empty(1, dtype=object)
    if array.shape == (0,):
        raise RequestError("the prompt is empty; give at least one token", "prompt")
    if array.ndim != 1 or array.dtype.kind not in "iu":
        raise RequestError("prompt_token_ids must be a flat list of integers", "prompt")
    outside = (array < 0) | (array >= vocab_size)
    if outside.any():
        bad = int(np.argmax(outside))
        raise RequestError(
            f"prompt_token_ids[{bad}]={array[bad]} is not a token of this model (0 to {vocab_size - 1})", "prompt"
        )
    return array.astype(np.int32)


def _resolve_max_tokens(num_prompt: int, max_tokens: int | None, max_model_len: int) -> int:
    left = max_model_len - num_prompt
    if left < 1:
        raise RequestError(
            f"the prompt has {num_prompt} tokens, max_model_len is {max_model_len}: no room for an output; "
            "shorten the prompt or raise max_model_len",
            "prompt",
        )
    if max_tokens is not None and max_tokens > left:
        raise RequestError(
            f"prompt ({num_prompt} tokens) + max_tokens ({max_tokens}) is {num_prompt + max_tokens}, above "
            f"max_model_len ({max_model_len}); lower max_tokens to {left} or shorten the prompt",
            "max_tokens",
        )
    return max_tokens if max_tokens is not None else left


def _check_token_ids(params: SamplingParams, vocab_size: int) -> None:
    named: dict[str, Iterable[int]] = {
        "logit_bias": params.logit_bias,
        "allowed_token_ids": params.allowed_token_ids or (),
        "bad_token_ids": params.bad_token_ids,
        "stop_token_ids": params.stop_token_ids,
    }
    for name, ids in named.items():
        for token in ids:
            if token >= vocab_size:
                raise RequestError(f"{name}: {token} is not a token of this model (0 to {vocab_size - 1})", name)


def _check_choice(params: SamplingParams, stop: set[int], vocab_size: int) -> None:
    """Something must be left to sample, also before `min_tokens`, when no stop token may come."""
    given = params.allowed_token_ids
    forbidden = set(params.bad_token_ids)
    if given is None and len(forbidden | stop) < vocab_size:
        return
    field = "bad_token_ids" if given is None else "allowed_token_ids"
    allowed = set(range(vocab_size) if given is None else given) - forbidden
    if not allowed:
        what = "token of this model" if given is None else "one of allowed_token_ids"
        raise RequestError(f"bad_token_ids forbids every {what}", field)
    if params.min_tokens and allowed <= stop:
        raise RequestError(
            f"only stop tokens may be sampled, which min_tokens={params.min_tokens} forbids at first; allow another "
            "token, or set min_tokens=0",
            field,
        )


def _derive_seed(seed: int, name: str) -> int:
    digest = blake2b(f"{seed}/{name}".encode(), digest_size=8).digest()
    return int.from_bytes(digest) & MAX_SEED
