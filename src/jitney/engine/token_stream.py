"""From the engine's thread to consumers on event loops: the tokens of one request, as fast as each consumer wants.

    engine thread: listener ──> pending updates;  after the step: one wake-up call for each event loop with news
    event loop:    wake-up ──> consumer takes all that is pending

A slow consumer holds nobody up: its updates pile up (at most max_tokens of them) and it takes them all at once.
"""

import asyncio
from collections import defaultdict, deque
from collections.abc import Iterable, Sequence

from jitney.engine.loop import Engine
from jitney.types import FinishReason, Request, TokenUpdate


class TokenStream:
    """Updates of the requests of one prompt, for one consumer on the running event loop."""

    def __init__(self, requests: Sequence[Request], outbox: "Outbox") -> None:
        self.requests = tuple(requests)
        self.loop = asyncio.get_running_loop()
        self._outbox = outbox
        self._pending: deque[TokenUpdate] = deque()  # append and popleft are atomic: no lock
        self._news = asyncio.Event()
        self._failure: Exception | None = None
        self.is_closed = False
        self.wake_is_due = False

    def listener(self, update: TokenUpdate) -> None:
        """The listener of each of the requests; on the engine's thread."""
        if not self.is_closed:
            self._pending.append(update)
            self._outbox.add(self)

    async def updates(self) -> list[TokenUpdate]:
        """All updates since the last call, at least one; waits for it.

        Raises:
            Exception: the one given to `fail`.
        """
        while True:
            self._news.clear()
            if self._failure is not None:
                raise self._failure
            if self._pending:
                return self._take()
            await self._news.wait()

    def fail(self, error: Exception) -> None:
        """End the stream with an error, at once. From any thread."""
        self._failure = error
        wake_all([self])

    def close(self) -> None:
        """Nobody listens any more."""
        self.is_closed = True

    def wake(self) -> None:
        """On the event loop."""
        self.wake_is_due = False
        self._news.set()

    def _take(self) -> list[TokenUpdate]:
        taken = []
        while self._pending:
            taken.append(self._pending.popleft())
        return taken


class Outbox:
    """The streams that have news from the step at hand. Lives on the engine's thread."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._streams: list[TokenStream] = []

    def add(self, stream: TokenStream) -> None:
        # A wake-up that is due on a loop closed meanwhile will never run; `flush` finds out.
        if not stream.wake_is_due or stream.loop.is_closed():
            stream.wake_is_due = True
            self._streams.append(stream)

    def flush(self) -> None:
        """After a step: one wake-up call for each event loop. Streams whose loop has been closed are aborted."""
        if not self._streams:
            return
        streams, self._streams = self._streams, []
        for stream in wake_all(streams):
            stream.close()
            for request in stream.requests:
                self._engine.finish(request, FinishReason.ABORT)


def wake_all(streams: Iterable[TokenStream]) -> list[TokenStream]:
    """Wake the consumers, from any thread; returns the streams whose event loop has been closed."""
    by_loop: dict[asyncio.AbstractEventLoop, list[TokenStream]] = defaultdict(list)
    for stream in streams:
        by_loop[stream.loop].append(stream)
    lost: list[TokenStream] = []
    for loop, group in by_loop.items():
        try:
            loop.call_soon_threadsafe(_wake_each, group)
        except RuntimeError:  # the loop is closed
            lost += group
    return lost


def _wake_each(streams: list[TokenStream]) -> None:
    for stream in streams:
        stream.wake()
