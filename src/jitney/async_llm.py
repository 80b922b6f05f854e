"""AsyncLLM, the asyncio front door: an async iterator for each request, on any number of event loops and threads.

    async with AsyncLLM() as llm:
        async for output in llm.generate("Hello", SamplingParams(max_tokens=32)):
            print(output.outputs[0].text)      # all text so far

The engine steps on a thread of its own. Texts are made on the consumer's event loop, except that stop strings are
looked for on the engine's thread, so that a request ends with the very token that completes one.
"""

import asyncio
import itertools
import threading
import weakref
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jitney.build import build_engine, make_config
from jitney.config import EngineConfig
from jitney.engine.engine_thread import EngineThread
from jitney.engine.limits import make_requests
from jitney.engine.loop import Engine
from jitney.engine.token_stream import Outbox, TokenStream
from jitney.errors import DuplicateRequestError, EngineDeadError
from jitney.outputs import RequestOutput
from jitney.sampling_params import SamplingParams
from jitney.text.generation import Generation, watch_stop_strings
from jitney.text.prompts import Conversation, EncodedPrompt, Prompt, encode_conversation, encode_prompt
from jitney.text.tokenizer import Tokenizer
from jitney.types import Request

if TYPE_CHECKING:
    from transformers import PreTrainedModel


class AsyncLLM:
    """A model that serves many requests at once. Every method may be called from any thread."""

    def __init__(
        self,
        model: "str | Path | PreTrainedModel | None" = None,
        *,
        tokenizer: Any = None,
        config: EngineConfig | None = None,
        **settings: Any,
    ) -> None:
        """Arguments and errors are those of `LLM`. Loads the model before it returns."""
        self._serve(*build_engine(model, tokenizer, make_config(config, settings)))

    @classmethod
    def from_engine(cls, engine: Engine, tokenizer: Tokenizer | None = None) -> "AsyncLLM":
        """An AsyncLLM over an engine made elsewhere, which it then owns."""
        llm = cls.__new__(cls)
        llm._serve(engine, tokenizer)
        return llm

    def _serve(self, engine: Engine, tokenizer: Tokenizer | None) -> None:
        self._engine = engine
        self._tokenizer = tokenizer
        self._outbox = Outbox(engine)
        self._thread = EngineThread(engine, self._outbox.flush)
        self._numbers = itertools.count()
        self._lock = threading.Lock()
        self._streams: dict[str, TokenStream] = {}  # guarded by the lock, as is the next one
        self._is_closed = False
        self._close_thread = weakref.finalize(self, self._thread.close)

    @property
    def config(self) -> EngineConfig:
        return self._engine.config

    @property
    def engine(self) -> Engine:
        """The engine, for its records, configuration and limits. Everything else belongs to its thread."""
        return self._engine

    @property
    def is_alive(self) -> bool:
        """Whether requests are accepted."""
        return not self._is_closed and self._thread.is_alive

    def get_tokenizer(self) -> Tokenizer | None:
        """None if the model was given without one."""
        return self._tokenizer

    def generate(
        self,
        prompt: Prompt,
        sampling_params: SamplingParams | None = None,
        request_id: str | None = None,
        *,
        priority: int = 0,
        cache_salt: str = "",
    ) -> AsyncGenerator[RequestOutput, None]:
        """Generate for one prompt, which is submitted when the iteration begins.

        Each output holds everything so far (of all `n` outputs); a slow consumer gets fewer, larger ones. Leaving the
        iteration early, in whatever way, aborts the request.

        Args:
            prompt: a string, {"prompt": string} or {"prompt_token_ids": [...]}.
            sampling_params: None: `SamplingParams()`.
            request_id: a name for `abort`. None: one is made up.
            priority: lower runs first under scheduling_policy="priority".
            cache_salt: prompts with different salts never share cached blocks.

        Raises (the iteration):
            RequestError: the request is at fault, or its step failed.
            DuplicateRequestError: the id is in use.
            EngineDeadError: the engine has stopped or was closed.
        """
        encode = partial(encode_prompt, prompt, self._tokenizer)
        return self._iterate(encode, sampling_params, request_id, priority, cache_salt)

    def chat(
        self,
        messages: Conversation,
        sampling_params: SamplingParams | None = None,
        request_id: str | None = None,
        *,
        priority: int = 0,
        cache_salt: str = "",
        add_generation_prompt: bool = True,
        chat_template_kwargs: Mapping[str, Any] | None = None,
    ) -> AsyncGenerator[RequestOutput, None]:
        """`generate` for one conversation, through the model's chat template (see `LLM.chat`)."""
        variables = chat_template_kwargs or {}
        encode = partial(encode_conversation, messages, self._tokenizer, add_generation_prompt, variables)
        return self._iterate(encode, sampling_params, request_id, priority, cache_salt)

    def abort(self, request_id: str) -> bool:
        """End a request: its iterator gets a last output with finish_reason "abort". False if there is none such."""
        with self._lock:
            stream = self._streams.get(request_id)
        if stream is not None:
            self._thread.abort(stream.requests)
        return stream is not None

    def close(self) -> None:
        """End the engine: iterators that wait raise EngineDeadError at once, as does every later call.

        Waits for steps in flight. Harmless when called twice.
        """
        with self._lock:
            self._is_closed = True
            streams = list(self._streams.values())
        for stream in streams:
            stream.fail(EngineDeadError("the engine has stopped: it was closed"))
        self._close_thread()

    async def aclose(self) -> None:
        """`close` without holding up the event loop."""
        await asyncio.to_thread(self.close)

    async def __aenter__(self) -> "AsyncLLM":
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    async def _iterate(
        self,
        encode: Callable[[], EncodedPrompt],
        params: SamplingParams | None,
        request_id: str | None,
        priority: int,
        cache_salt: str,
    ) -> AsyncGenerator[RequestOutput, None]:
        self._check_open()
        prompt = encode()
        request_id = f"request-{next(self._numbers)}" if request_id is None else request_id
        requests = make_requests(
            request_id,
            prompt.token_ids,
            SamplingParams() if params is None else params,
            self._engine.limits,
            engine_seed=self.config.seed,
            priority=priority,
            cache_salt=cache_salt,
        )
        generation = Generation(request_id, prompt, requests, self._tokenizer)
        stream = self._open_stream(request_id, requests)
        try:
            while not generation.is_finished:
                for update in await stream.updates():
                    if update.error is not None:
                        raise update.error
                    generation.push(update)
                yield generation.output()
        finally:
            self._close_stream(request_id, stream)

    def _check_open(self) -> None:
        if self._is_closed:
            raise EngineDeadError("the engine has stopped: it was closed")
        self._engine.check_alive()

    def _open_stream(self, request_id: str, requests: Sequence[Request]) -> TokenStream:
        """Submit the requests, with everything in place to hear of them."""
        stream = TokenStream(requests, self._outbox)
        for request in requests:
            request.listener = stream.listener
            request.streams = True
        watch_stop_strings(requests, self._tokenizer, self._engine.finish)
        with self._lock:
            self._check_open()
            if request_id in self._streams:
                raise DuplicateRequestError(f"request_id {request_id!r} is in use; choose another", "request_id")
            self._thread.submit(requests)
            self._streams[request_id] = stream  # from here on `abort` finds it: after it has been submitted
        return stream

    def _close_stream(self, request_id: str, stream: TokenStream) -> None:
        stream.close()
        with self._lock:
            del self._streams[request_id]
        unfinished = [request for request in stream.requests if not request.is_finished]
        if unfinished:
            self._thread.abort(unfinished)
