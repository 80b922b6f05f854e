"""The engine on a thread of its own: requests come and go from any thread while it steps. Knows no strings.

    any thread ──submit, abort──> inbox ──> engine thread: obey, step, after_step ──> listeners

The thread obeys what is in the inbox before each step, and sleeps on the inbox when there is nothing to do. It ends
with the engine, and every request that was accepted hears of the end, whatever happens.
"""

import logging
import queue
import threading
from collections.abc import Callable, Sequence
from functools import partial

from jitney.engine.loop import Engine
from jitney.errors import EngineDeadError
from jitney.types import FinishReason, Request

logger = logging.getLogger(__name__)

Command = Callable[[], object]


class EngineThread:
    """Runs an engine, which from here on belongs to this thread alone.

    A daemon thread: Python may exit without `close`, but call it for an orderly end (AsyncLLM does, also at exit).

    Args:
        engine: its configuration and limits may still be read by everybody.
        after_step: called on the thread after each step and at its end; must not raise.
    """

    def __init__(self, engine: Engine, after_step: Callable[[], None] = lambda: None) -> None:
        self._engine = engine
        self._after_step = after_step
        self._inbox: queue.SimpleQueue[Command] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._accepts = True  # guarded by the lock: what is in the inbox when this turns False is still obeyed
        self._is_closing = False
        self._thread = threading.Thread(target=self._run, name="jitney-engine", daemon=True)
        self._thread.start()

    @property
    def is_alive(self) -> bool:
        """Whether requests are accepted."""
        return self._accepts and self._thread.is_alive() and self._engine.death is None

    def submit(self, requests: Sequence[Request]) -> None:
        """Queue requests, all or none. A refusal reaches their listeners as an end with the error.

        Raises:
            EngineDeadError: the engine has stopped.
        """
        self._send(partial(self._engine.add_or_refuse, *requests))

    def abort(self, requests: Sequence[Request]) -> None:
        """End requests that were submitted before. Harmless for those that have ended, and after the end."""
        try:
            self._send(partial(self._finish, requests))
        except EngineDeadError:
            return

    def close(self) -> None:
        """End every request with EngineDeadError, give the device back and end the thread. Waits for steps in flight.

        Harmless when called twice.
        """
        with self._lock:
            if self._accepts:
                self._accepts = False
                self._inbox.put(self._stop)
        if threading.current_thread() is not self._thread:
            self._thread.join()

    def _send(self, command: Command) -> None:
        with self._lock:
            if not self._accepts or not self._thread.is_alive():  # in a forked process the thread is gone
                cause = self._engine.death
                raise EngineDeadError(f"the engine has stopped: {cause or 'its thread has ended'}") from cause
            self._inbox.put(command)

    # On the thread

    def _run(self) -> None:
        try:
            self._loop()
        except EngineDeadError:
            pass  # whoever waits has been told, with the cause
        except Exception as error:
            logger.exception("the engine's thread failed")
            self._engine.die(error)
        finally:
            self._end()

    def _loop(self) -> None:
        engine = self._engine
        is_idle = True
        while not self._is_closing:
            self._obey(wait=is_idle)
            is_idle = not engine.has_work or not engine.step()
            self._after_step()

    def _obey(self, wait: bool) -> None:
        """Obey all there is in the inbox; with `wait`, wait for something to come or for the engine's wake time."""
        if wait and self._inbox.empty():
            self._wait()
        while True:
            try:
                command = self._inbox.get_nowait()
            except queue.Empty:
                return
            command()

    def _wait(self) -> None:
        """Until a command comes (and is obeyed) or the engine wants to be woken."""
        engine = self._engine
        wake = engine.wake_time()
        if wake is None:
            if engine.has_work:
                raise AssertionError("requests wait, nothing runs, and nothing will wake the scheduler")
            self._inbox.get()()
            return
        try:
            self._inbox.get(timeout=max(0.0, wake - engine.device.now()))()
        except queue.Empty:
            engine.device.wait_until(wake)  # for clocks that stand still while we sleep

    def _finish(self, requests: Sequence[Request]) -> None:
        for request in requests:
            self._engine.finish(request, FinishReason.ABORT)

    def _stop(self) -> None:
        self._is_closing = True
        self._engine.die(EngineDeadError("it was closed"))

    def _end(self) -> None:
        with self._lock:
            self._accepts = False
        try:
            self._engine.die(EngineDeadError("its thread has ended"))  # nothing new if it is dead, as it should be
            self._obey(wait=False)  # requests that came too late are refused, for the engine is dead
            self._after_step()
        finally:
            self._engine.close()
