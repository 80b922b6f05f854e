"""One prompt's way through the engine seen from the caller's side: its n requests, their tokens, their text.

Tokens go in (all at once, or update by update), a RequestOutput comes out. The text does not depend on how the tokens
were cut into updates. Nothing here runs on the engine's thread except StopStringWatch.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import islice

from jitney.errors import RequestError
from jitney.outputs import CompletionOutput, Logprob, RequestOutput
from jitney.sampling_params import SamplingParams
from jitney.text.output import TextStream
from jitney.text.prompts import EncodedPrompt
from jitney.text.tokenizer import Tokenizer
from jitney.types import FinishReason, Listener, Request, RequestMetrics, TokenLogprobs, TokenUpdate

FinishRequest = Callable[[Request, FinishReason], None]


class Generation:
    """A prompt and the outputs of its requests as they grow. Used by one thread."""

    def __init__(
        self, request_id: str, prompt: EncodedPrompt, requests: Sequence[Request], tokenizer: Tokenizer | None
    ) -> None:
        """
        Args:
            request_id: the caller's name for all of it.
            requests: `params.n` of them, see `make_requests`.
            tokenizer: None: no text.
        """
        self.request_id = request_id
        self.requests = tuple(requests)
        self._prompt = prompt
        self._prompt_token_ids: list[int] = requests[0].prompt_token_ids.tolist()
        self._prompt_logprobs: list[dict[int, Logprob] | None] | None = None
        self._tokenizer = tokenizer
        self._sequences = {
            request.request_id: _Sequence(index, request, tokenizer) for index, request in enumerate(requests)
        }

    @property
    def is_finished(self) -> bool:
        """Whether the end of every request has been taken in."""
        return all(sequence.finish_reason is not None for sequence in self._sequences.values())

    def push(self, update: TokenUpdate) -> None:
        """Take in news of one of the requests."""
        sequence = self._sequences[update.request.request_id]
        sequence.push(update.token_ids)
        if update.finish_reason is not None:
            sequence.end(update.finish_reason, update.error)

    def push_ends(self) -> None:
        """Take in the finished requests as they are; for callers that did not listen."""
        for request in self.requests:
            self.push(TokenUpdate(request, request.output_token_ids, request.finish_reason, request.error))

    def output(self) -> RequestOutput:
        """The outputs so far. Not changed by what is pushed later; the prompt's lists are shared by all outputs."""
        sequences = self._sequences.values()
        self._take_prompt_logprobs()
        return RequestOutput(
            request_id=self.request_id,
            prompt=self._prompt.text,
            prompt_token_ids=self._prompt_token_ids,
            outputs=[sequence.output() for sequence in sequences],
            finished=self.is_finished,
            prompt_logprobs=self._prompt_logprobs,
            metrics=_merged_metrics([request.metrics for request in self.requests]),
            error=next((sequence.error for sequence in sequences if sequence.error is not None), None),
        )

    def _take_prompt_logprobs(self) -> None:
        """They are complete once the prompt's first output token has come."""
        request = self.requests[0]
        has_begun = self._sequences[request.request_id].has_tokens
        if self._prompt_logprobs is None and has_begun and request.params.prompt_logprobs is not None:
            entries = [_logprob_dict(entry, self._tokenizer) for entry in request.prompt_logprobs]
            self._prompt_logprobs = [None, *entries]


class StopStringWatch:
    """Listener on the engine's thread that ends a request with the token that completes a stop string.

    Keeps a text of its own: the caller's text may lag behind, this one must not.
    """

    def __init__(
        self, tokenizer: Tokenizer, params: SamplingParams, finish: FinishRequest, forward: Listener | None
    ) -> None:
        """
        Args:
            finish: the engine's.
            forward: hears every update as well, a token before the end that it causes.
        """
        self._text = TextStream.for_request(tokenizer, params)
        self._finish = finish
        self._forward = forward

    def __call__(self, update: TokenUpdate) -> None:
        if self._forward is not None:
            self._forward(update)
        if update.finish_reason is None:
            self._text.push(_with_text(update.token_ids, update.request))
            if self._text.matched_stop is not None:
                self._finish(update.request, FinishReason.STOP)


def watch_stop_strings(requests: Sequence[Request], tokenizer: Tokenizer | None, finish: FinishRequest) -> None:
    """Put a StopStringWatch before the listener of each request that has stop strings.

    Raises:
        RequestError: there is no tokenizer to see strings with.
    """
    for request in requests:
        if request.params.stop_strings:
            if tokenizer is None:
                raise RequestError("stop strings need a tokenizer; pass tokenizer=, or use stop_token_ids", "stop")
            request.listener = StopStringWatch(tokenizer, request.params, finish, request.listener)
            request.streams = True


def failed_output(request_id: str, prompt: EncodedPrompt | None, n: int, error: Exception) -> RequestOutput:
    """What a prompt gets that never reached the engine."""
    token_ids = prompt.token_ids if prompt is not None else ()
    return RequestOutput(
        request_id=request_id,
        prompt=prompt.text if prompt is not None else None,
        prompt_token_ids=list(token_ids) if isinstance(token_ids, Sequence) else [],
        outputs=[CompletionOutput(index, "", [], FinishReason.ERROR.value) for index in range(n)],
        finished=True,
        error=error,
    )


class _Sequence:
    """The growing output of one request."""

    def __init__(self, index: int, request: Request, tokenizer: Tokenizer | None) -> None:
        self.finish_reason: FinishReason | None = None
        self.error: Exception | None = None
        self._index = index
        self._request = request
        self._tokenizer = tokenizer
        self._text = TextStream.for_request(tokenizer, request.params) if tokenizer is not None else None
        self._token_ids: list[int] = []
        self._logprobs: list[dict[int, Logprob]] = []
        self._cumulative_logprob = 0.0

    @property
    def has_tokens(self) -> bool:
        return bool(self._token_ids)

    def push(self, token_ids: Sequence[int]) -> None:
        self._token_ids += token_ids
        if self._text is not None:
            self._text.push(_with_text(token_ids, self._request))
        # The engine appends a token's logprobs before it tells of the token.
        for entry in islice(self._request.logprobs, len(self._logprobs), len(self._token_ids)):
            self._logprobs.append(_logprob_dict(entry, self._tokenizer))
            self._cumulative_logprob += entry.logprob

    def end(self, reason: FinishReason, error: Exception | None) -> None:
        self.finish_reason = reason
        self.error = error
        if self._text is not None:
            self._text.finish()
            if self._text.matched_stop is not None and reason is FinishReason.LENGTH:
                self.finish_reason = FinishReason.STOP  # completed by text that was held back until the end

    def output(self) -> CompletionOutput:
        if self.finish_reason is FinishReason.ERROR:
            return CompletionOutput(self._index, "", [], FinishReason.ERROR.value)
        wants_logprobs = self._request.params.logprobs is not None
        return CompletionOutput(
            index=self._index,
            text=self._text.text if self._text is not None else "",
            token_ids=list(self._token_ids),
            finish_reason=self.finish_reason.value if self.finish_reason is not None else None,
            stop_reason=self._stop_reason(),
            logprobs=list(self._logprobs) if wants_logprobs else None,
            cumulative_logprob=self._cumulative_logprob if wants_logprobs else None,
        )

    def _stop_reason(self) -> str | int | None:
        if self.finish_reason is not FinishReason.STOP:
            return None
        if self._text is not None and self._text.matched_stop is not None:
            return self._text.matched_stop
        last = self._token_ids[-1]
        return last if last in self._request.params.stop_token_ids else None


def _with_text(token_ids: Sequence[int], request: Request) -> Sequence[int]:
    """Without the stop token, which can only be the last one, and whose text is not part of the output."""
    if token_ids and token_ids[-1] in request.stop_token_ids and not request.params.include_stop_str_in_output:
        return token_ids[:-1]
    return token_ids


def _logprob_dict(entry: TokenLogprobs, tokenizer: Tokenizer | None) -> dict[int, Logprob]:
    """The token itself first, then the most likely ones in order."""

    def decoded(token_id: int) -> str | None:
        return tokenizer.decode([token_id], skip_special_tokens=False) if tokenizer is not None else None

    found = {entry.token_id: Logprob(entry.logprob, entry.rank, decoded(entry.token_id))}
    top = zip(entry.top_token_ids, entry.top_logprobs, strict=True)
    for rank, (token_id, logprob) in enumerate(top, start=1):
        found.setdefault(token_id, Logprob(logprob, rank, decoded(token_id)))
    return found


def _merged_metrics(all_metrics: Sequence[RequestMetrics]) -> RequestMetrics:
    """A copy, of one request or over several: the earliest start, the latest end."""
    first = all_metrics[0]
    if len(all_metrics) == 1:
        return replace(first)
    scheduled = [m.first_scheduled_time for m in all_metrics if m.first_scheduled_time is not None]
    tokens = [m.first_token_time for m in all_metrics if m.first_token_time is not None]
    finished = [m.finished_time for m in all_metrics if m.finished_time is not None]
    return RequestMetrics(
        arrival_time=first.arrival_time,
        first_scheduled_time=min(scheduled, default=None),
        first_token_time=min(tokens, default=None),
        finished_time=max(finished) if len(finished) == len(all_metrics) else None,
        num_cached_tokens=first.num_cached_tokens,
        num_preemptions=sum(m.num_preemptions for m in all_metrics),
    )
