"""How one request wants its tokens chosen. Names and meanings are vLLM's; values are checked on construction."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from numbers import Real
from operator import index

from jitney.errors import RequestError

MAX_LOGPROBS = 20
MAX_SEED = 2**63 - 1

_INTEGERS = ("n", "top_k", "max_tokens", "min_tokens", "seed", "logprobs", "prompt_logprobs")


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams:
    """Sampling parameters of one request.

    Raises:
        RequestError: a value has the wrong type or lies outside its range; `.field` names it.
    """

    n: int = 1
    """Number of outputs for the prompt (>= 1)."""
    temperature: float = 1.0
    """Divides the logits (0 to 100). 0 is greedy: the most likely token, always."""
    top_k: int = 0
    """Keep only the k most likely tokens. 0 or -1: all."""
    top_p: float = 1.0
    """Keep the smallest set of most likely tokens whose probability reaches this (0 < top_p <= 1)."""
    min_p: float = 0.0
    """Drop tokens less likely than this share of the most likely one (0 to 1)."""
    repetition_penalty: float = 1.0
    """> 1 makes tokens of the prompt and the output less likely (Keskar et al., 2019). 0.01 to 100."""
    presence_penalty: float = 0.0
    """Subtracted once from the logit of every token already in the output (-2 to 2)."""
    frequency_penalty: float = 0.0
    """Subtracted from a token's logit for each time it stands in the output (-2 to 2)."""
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    """Added to the logits: token id -> bias (-100 to 100)."""
    allowed_token_ids: Sequence[int] | None = None
    """Only these token ids may be sampled."""
    bad_token_ids: Sequence[int] = ()
    """These token ids are never sampled."""
    max_tokens: int | None = None
    """Most tokens to generate (>= 1). None: until a stop or the model's limit."""
    min_tokens: int = 0
    """No stop token and no stop string counts before this many tokens."""
    stop: str | Sequence[str] = ()
    """Strings that end the output; they are not part of it (unless `include_stop_str_in_output`)."""
    stop_token_ids: Sequence[int] = ()
    """Token ids that end the output, besides the model's own end-of-text tokens."""
    include_stop_str_in_output: bool = False
    """Keep the stop string at the end of the text."""
    ignore_eos: bool = False
    """Go on after the model's end-of-text token."""
    seed: int | None = None
    """Makes sampling reproducible, whatever shares the batch (0 to 2**63-1). None: drawn by the engine."""
    logprobs: int | None = None
    """Return the log-probability of the sampled token and of this many most likely ones (0 to 20)."""
    prompt_logprobs: int | None = None
    """The same for the tokens of the prompt; turns prefix-cache hits off for the request."""
    skip_special_tokens: bool = True
    """Leave special tokens out of the text."""

    def __post_init__(self) -> None:
        _integer("n", self.n, 1, 1024)
        _number("temperature", self.temperature, 0.0, 100.0)
        _integer("top_k", self.top_k, -1, 2**31 - 1)
        _number("top_p", self.top_p, 0.0, 1.0)
        if self.top_p == 0.0:
            raise RequestError("top_p is 0, which keeps no token; use temperature=0 for greedy decoding", "top_p")
        _number("min_p", self.min_p, 0.0, 1.0)
        _number("repetition_penalty", self.repetition_penalty, 0.01, 100.0)
        _number("presence_penalty", self.presence_penalty, -2.0, 2.0)
        _number("frequency_penalty", self.frequency_penalty, -2.0, 2.0)
        if not isinstance(self.logit_bias, Mapping):
            raise RequestError(f"logit_bias must map token ids to numbers, got {self.logit_bias!r}", "logit_bias")
        for token, bias in self.logit_bias.items():
            _integer("logit_bias", token, 0, 2**31 - 1)
            _number("logit_bias", bias, -100.0, 100.0)
        if self.allowed_token_ids is not None:
            _token_ids("allowed_token_ids", self.allowed_token_ids)
            if not len(self.allowed_token_ids):
                raise RequestError("allowed_token_ids is empty, so nothing can be sampled", "allowed_token_ids")
        _token_ids("bad_token_ids", self.bad_token_ids)
        _token_ids("stop_token_ids", self.stop_token_ids)
        if self.max_tokens is not None:
            _integer("max_tokens", self.max_tokens, 1, 2**31 - 1)
        _integer("min_tokens", self.min_tokens, 0, 2**31 - 1)
        if self.max_tokens is not None and self.min_tokens > self.max_tokens:
            raise RequestError(f"min_tokens={self.min_tokens} is above max_tokens={self.max_tokens}", "min_tokens")
        _check_stop(self.stop)
        if self.seed is not None:
            _integer("seed", self.seed, 0, MAX_SEED)
        for name in ("logprobs", "prompt_logprobs"):
            if getattr(self, name) is not None:
                _integer(name, getattr(self, name), 0, MAX_LOGPROBS)
        for name in ("ignore_eos", "skip_special_tokens", "include_stop_str_in_output"):
            if not isinstance(getattr(self, name), bool):
                raise RequestError(f"{name} must be true or false, got {getattr(self, name)!r}", name)
        self._own_values()

    def _own_values(self) -> None:
        """Plain Python values that nobody else can change: numpy's small integers overflow, callers reuse lists."""
        for name in _INTEGERS:
            value = getattr(self, name)
            if value is not None:
                object.__setattr__(self, name, index(value))
        for name in ("allowed_token_ids", "bad_token_ids", "stop_token_ids"):
            if getattr(self, name) is not None:
                object.__setattr__(self, name, tuple(index(token) for token in getattr(self, name)))
        biases = {index(token): float(bias) for token, bias in self.logit_bias.items()}
        object.__setattr__(self, "logit_bias", biases)
        object.__setattr__(self, "stop", self.stop if isinstance(self.stop, str) else tuple(self.stop))

    @property
    def stop_strings(self) -> tuple[str, ...]:
        """`stop` as a tuple, whatever form it was given in."""
        return (self.stop,) if isinstance(self.stop, str) else tuple(self.stop)

    @property
    def is_greedy(self) -> bool:
        return self.temperature == 0.0

    @property
    def uses_penalties(self) -> bool:
        return bool(self.repetition_penalty != 1.0 or self.presence_penalty or self.frequency_penalty)


def _integer(name: str, value: object, low: int, high: int) -> None:
    if isinstance(value, bool) or not hasattr(value, "__index__"):
        raise RequestError(f"{name} must be an integer, got {value!r}", name)
    if not low <= int(value.__index__()) <= high:
        raise RequestError(f"{name}={value} is out of range: {low} to {high}", name)


def _number(name: str, value: object, low: float, high: float) -> None:
    if isinstance(value, bool) or not isinstance(value, Real):
        raise RequestError(f"{name} must be a number, got {value!r}", name)
    if not value <= high or value < low:  # also refuses NaN, and integers beyond the range of float
        raise RequestError(f"{name}={value} is out of range: {low:g} to {high:g}", name)


def _token_ids(name: str, ids: object) -> None:
    if isinstance(ids, str | bytes) or not isinstance(ids, Sequence):
        raise RequestError(f"{name} must be a list of token ids, got {ids!r}", name)
    for token in ids:
        _integer(name, token, 0, 2**31 - 1)


def _check_stop(stop: object) -> None:
    strings = (stop,) if isinstance(stop, str) else stop
    if not isinstance(strings, Sequence) or isinstance(strings, bytes):
        raise RequestError(f"stop must be a string or a list of strings, got {stop!r}", "stop")
    for string in strings:
        if not isinstance(string, str) or not string:
            raise RequestError(f"stop strings must be non-empty strings, got {string!r}", "stop")
