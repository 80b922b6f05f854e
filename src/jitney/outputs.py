"""What a caller gets back. Field names and meanings are vLLM's. Plain data; knows no engine, no tensors."""

from dataclasses import dataclass, field

from jitney.types import RequestMetrics


@dataclass(slots=True)
class Logprob:
    """Log-probability of one token at one position, in the model's raw distribution."""

    logprob: float
    rank: int
    """1 = the most likely token."""
    decoded_token: str | None
    """The token's own text; None without a tokenizer."""


@dataclass(slots=True)
class CompletionOutput:
    """One of a prompt's `n` outputs, as far as it has come."""

    index: int
    """0 to n - 1."""
    text: str
    """Without the stop string or stop token (unless `include_stop_str_in_output`); "" without a tokenizer."""
    token_ids: list[int]
    """All generated tokens, the one that ended the output included."""
    finish_reason: str | None = None
    """None while it goes on; "stop", "length", "abort" or "error" at its end."""
    stop_reason: str | int | None = None
    """The stop string or the caller's stop token that ended it; None for the model's own end-of-text tokens."""
    logprobs: list[dict[int, Logprob]] | None = None
    """For each token: the sampled token and the most likely ones (token id -> Logprob), if asked for."""
    cumulative_logprob: float | None = None
    """Sum of the sampled tokens' log-probabilities, if logprobs were asked for."""


@dataclass(slots=True)
class RequestOutput:
    """One prompt and its outputs."""

    request_id: str
    prompt: str | None
    """The prompt's text; None if it came as token ids."""
    prompt_token_ids: list[int]
    outputs: list[CompletionOutput]
    finished: bool
    prompt_logprobs: list[dict[int, Logprob] | None] | None = None
    """For each prompt token (None for the first, which nothing predicts), if asked for."""
    metrics: RequestMetrics = field(default_factory=RequestMetrics)
    """Of all outputs together: the earliest start, the latest end."""
    error: Exception | None = None
    """Why the request failed, if it did: its output is then empty and its finish_reason "error"."""
