"""Ctrl-C between two steps instead of inside one, where it could leave the engine's state half changed."""

import signal
import threading
from types import FrameType, TracebackType
from typing import Any


class DeferredInterrupt:
    """While entered on the main thread, SIGINT is noted, and `raise_pending` hands it to the previous handler.

    A second SIGINT before that takes effect at once, in case the step never returns. On other threads, which Python
    sends no signals, it does nothing.
    """

    def __init__(self) -> None:
        self._previous: Any = None
        self._is_pending = False
        self._frame: FrameType | None = None

    def __enter__(self) -> "DeferredInterrupt":
        if threading.current_thread() is threading.main_thread():
            previous = signal.getsignal(signal.SIGINT)
            if callable(previous):  # else it is ignored, or belongs to a host program that embeds Python
                self._previous = previous
                signal.signal(signal.SIGINT, self._note)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._previous is not None:
            signal.signal(signal.SIGINT, self._previous)
        if kind is None or not issubclass(kind, KeyboardInterrupt):
            self.raise_pending()

    def raise_pending(self) -> None:
        """Let an interrupt that came since take effect (normally: raise KeyboardInterrupt)."""
        if self._is_pending:
            self._is_pending = False
            self._previous(signal.SIGINT, self._frame)

    def _note(self, signum: int, frame: FrameType | None) -> None:
        if self._is_pending:
            self._previous(signum, frame)
        self._is_pending, self._frame = True, frame
