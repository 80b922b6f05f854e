"""A batch from end to end: lines in, a bounded number of requests in the engine, answers out as they finish.

Knows no terminal. What a line does wrong becomes that line's answer; only a dead engine or a full disk ends the run.
"""

import asyncio
import logging
from collections.abc import AsyncGenerator, Callable, Iterable
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any, Protocol

from jitney.batch.answer import answer_line, failure_line
from jitney.batch.body import BatchRequest
from jitney.batch.failure import LineError, failure_of
from jitney.batch.line import custom_id_of, parse_line, parse_request
from jitney.errors import EngineDeadError, RequestError
from jitney.outputs import RequestOutput

logger = logging.getLogger(__name__)

WINDOW_PER_SEAT = 4
"""Requests in the engine for each of its seats: enough that a free seat always finds the next one waiting."""


class ServesRequests(Protocol):
    """What the run needs of AsyncLLM."""

    def generate(
        self, prompt: Any, sampling_params: Any, *, priority: int, cache_salt: str
    ) -> AsyncGenerator[RequestOutput, None]: ...

    def chat(
        self, messages: Any, sampling_params: Any, *, priority: int, cache_salt: str, chat_template_kwargs: Any
    ) -> AsyncGenerator[RequestOutput, None]: ...


@dataclass(slots=True)
class BatchCounts:
    """How far a run is. Lines that failed are in both `num_lines` and `num_failed`."""

    num_lines: int = 0
    num_failed: int = 0
    num_prompt_tokens: int = 0
    num_output_tokens: int = 0


class BatchRun:
    """One run over one input. `counts` may be read at any time, `on_line` is called after each line written."""

    def __init__(
        self,
        llm: ServesRequests,
        write: Callable[[dict[str, Any]], None],
        *,
        model_name: str,
        window: int,
        on_line: Callable[[BatchCounts], None] = lambda counts: None,
    ) -> None:
        """
        Args:
            llm: runs the requests.
            write: stores one answer; what it raises ends the run.
            model_name: named in answers to requests that name no model.
            window: most lines read but not yet answered; bounds the memory, whatever the length of the input.
            on_line: for a progress bar.
        """
        self.counts = BatchCounts()
        self._llm = llm
        self._write = write
        self._model_name = model_name
        self._window = asyncio.Semaphore(window)
        self._on_line = on_line
        self._seen: dict[str, int] = {}

    async def run(self, lines: Iterable[tuple[int, bytes]]) -> None:
        """Answer every (line number, line), in the order in which they finish.

        When it is cancelled, or raises, the requests still running are aborted; answers written so far stay.

        Raises:
            EngineDeadError: the engine has stopped.
        """
        try:
            async with asyncio.TaskGroup() as tasks:
                for number, line in lines:
                    await self._window.acquire()
                    tasks.create_task(self._answer(number, line))
        except ExceptionGroup as group:
            raise group.exceptions[0] from None

    async def _answer(self, number: int, line: bytes) -> None:
        try:
            answer = await self._answer_of(number, line)
            self._write(answer)
        finally:
            self._window.release()
        self.counts.num_lines += 1
        self.counts.num_failed += answer["error"] is not None
        self._on_line(self.counts)

    async def _answer_of(self, number: int, line: bytes) -> dict[str, Any]:
        custom_id = None
        try:
            fields = parse_line(line)
            custom_id = custom_id_of(fields)
            self._check_new(custom_id, number)
            request = parse_request(fields)
            output = await self._serve(request)
            answer = answer_line(custom_id, request, output, self._model_name)
        except EngineDeadError:
            raise
        except Exception as error:  # whatever it is, it costs this line only
            if not isinstance(error, RequestError):
                logger.exception("line %d failed", number)
            return failure_line(custom_id, failure_of(error, number))
        self.counts.num_prompt_tokens += len(output.prompt_token_ids)
        self.counts.num_output_tokens += sum(len(choice.token_ids) for choice in output.outputs)
        return answer

    def _check_new(self, custom_id: str, number: int) -> None:
        first = self._seen.setdefault(custom_id, number)
        if first != number:
            raise LineError(
                "duplicate_custom_id", f"custom_id {custom_id!r} stands in line {first} already", "custom_id"
            )

    async def _serve(self, request: BatchRequest) -> RequestOutput:
        """The finished output. Raises what kept the request from finishing."""
        last = None
        async with aclosing(self._start(request)) as outputs:
            async for output in outputs:
                last = output
        if last is None or not last.finished:
            raise RuntimeError("the request ended without an output")
        if last.error is not None:
            raise last.error
        return last

    def _start(self, request: BatchRequest) -> AsyncGenerator[RequestOutput, None]:
        if request.messages is None:
            return self._llm.generate(
                request.prompt, request.params, priority=request.priority, cache_salt=request.cache_salt
            )
        return self._llm.chat(
            request.messages,
            request.params,
            priority=request.priority,
            cache_salt=request.cache_salt,
            chat_template_kwargs=request.chat_template_kwargs,
        )
