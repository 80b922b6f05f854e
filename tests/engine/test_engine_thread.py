import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from jitney.engine.engine_thread import EngineThread
from jitney.errors import DuplicateRequestError, EngineDeadError, RequestError
from jitney.types import FinishReason, Request, TokenUpdate

from .toy_engine import Recorder, ToyEngine, check_idle, expected_tokens, toy_engine, toy_request

PATIENCE_S = 30.0
"""Only a hang takes this long."""


class WaitingRecorder(Recorder):
    """A Recorder that can be waited for from another thread."""

    def __init__(self) -> None:
        super().__init__()
        self.has_ended = threading.Event()

    def __call__(self, update: TokenUpdate) -> None:
        super().__call__(update)
        if update.finish_reason is not None:
            self.has_ended.set()

    def end(self) -> TokenUpdate:
        assert self.has_ended.wait(PATIENCE_S)
        return self.ends[0]


class Bench:
    """An engine on its thread."""

    def __init__(self, **settings: Any) -> None:
        self.engine: ToyEngine = toy_engine(**settings)
        self.thread = EngineThread(self.engine)

    def request(self, name: str, prompt: list[int] | None = None, **params: Any) -> tuple[Request, WaitingRecorder]:
        request = toy_request(self.engine.limits, name, prompt or [len(name), 1, 2], **params)
        recorder = request.listener = WaitingRecorder()
        return request, recorder

    def come_to_rest(self) -> None:
        """Wait until the thread has obeyed and the last step in flight has been collected."""
        request, recorder = self.request("last of all", max_tokens=1)
        self.thread.submit([request])
        recorder.end()
        is_idle = threading.Event()

        def look() -> None:
            (self.thread._inbox.put(look) if self.engine.has_work else is_idle.set())

        self.thread._send(look)
        assert is_idle.wait(PATIENCE_S)


@pytest.fixture(params=[{"async_scheduling": True}, {"async_scheduling": False}], ids=["async", "sync"])
def bench(request: pytest.FixtureRequest) -> Iterator[Bench]:
    bench = Bench(**request.param)
    yield bench
    bench.come_to_rest()
    check_idle(bench.engine)
    bench.thread.close()


def test_requests_from_many_threads_all_end_with_their_own_tokens(bench: Bench) -> None:
    pairs = [bench.request(f"r{index}", [index + 10, 3]) for index in range(64)]
    with ThreadPoolExecutor(16) as pool:
        list(pool.map(lambda pair: bench.thread.submit([pair[0]]), pairs))
    for request, recorder in pairs:
        recorder.end()
        assert recorder.tokens == expected_tokens(request)


def test_a_refusal_reaches_the_listener_and_nobody_else(bench: Bench) -> None:
    first, first_recorder = bench.request("same", max_tokens=30, ignore_eos=True)
    twin, twin_recorder = bench.request("same")
    bench.thread.submit([first])
    bench.thread.submit([twin])
    end = twin_recorder.end()
    assert end.finish_reason is FinishReason.ERROR and isinstance(end.error, DuplicateRequestError)
    assert twin.is_finished
    first_recorder.end()
    assert first_recorder.tokens == expected_tokens(first)


def test_an_abort_ends_the_request_wherever_it_is(bench: Bench) -> None:
    pairs = [bench.request(f"long {index}", max_tokens=200, ignore_eos=True) for index in range(8)]
    for request, _ in pairs:
        bench.thread.submit([request])
    for request, recorder in pairs:
        bench.thread.abort([request])
        assert recorder.end().finish_reason in (FinishReason.ABORT, FinishReason.LENGTH)
    for request, _ in pairs:
        bench.thread.abort([request])  # harmless


def test_a_listener_that_raises_ends_its_own_request_only(bench: Bench) -> None:
    bad, bad_recorder = bench.request("bad", ignore_eos=True)
    good, good_recorder = bench.request("good", ignore_eos=True)

    def raising(update: TokenUpdate) -> None:
        if update.finish_reason is None:
            raise KeyError("a bug of the caller's")
        bad_recorder(update)

    bad.listener = raising
    bench.thread.submit([bad, good])
    assert isinstance(bad_recorder.end().error, RequestError)
    good_recorder.end()
    assert good_recorder.tokens == expected_tokens(good)


def test_an_idle_engine_is_not_stepped(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    bench.come_to_rest()
    before = bench.engine.records.num_steps
    steps: list[int] = []
    step = bench.engine.step
    monkeypatch.setattr(bench.engine, "step", lambda: steps.append(1) or step())
    for index in range(20):  # commands wake the thread, which then looks for work once
        bench.thread.abort([bench.request(f"never submitted {index}")[0]][:0])
    threading.Event().wait(0.2)
    assert not steps and bench.engine.records.num_steps == before
    monkeypatch.undo()


def test_a_window_of_the_dynamic_policy_ends_without_any_new_request() -> None:
    bench = Bench(batching_policy="dynamic", dynamic_batching_window_s=0.05)
    request, recorder = bench.request("alone")
    bench.thread.submit([request])
    recorder.end()
    assert recorder.tokens == expected_tokens(request)
    bench.thread.close()


def kill(bench: Bench) -> None:
    def broken_plan(now: float) -> None:
        raise ZeroDivisionError("a bug of ours")

    bench.engine.scheduler.plan = broken_plan  # type: ignore[method-assign]


def test_death_ends_every_request_with_the_cause_and_refuses_new_ones() -> None:
    bench = Bench()
    kill(bench)
    pairs = [bench.request(f"r{index}") for index in range(8)]
    bench.thread.submit([request for request, _ in pairs])
    for _, recorder in pairs:
        error = recorder.end().error
        assert isinstance(error, EngineDeadError) and isinstance(error.__cause__, ZeroDivisionError)
    bench.thread._thread.join(PATIENCE_S)
    assert not bench.thread.is_alive
    with pytest.raises(EngineDeadError, match="a bug of ours") as raised:
        bench.thread.submit([bench.request("late")[0]])
    assert isinstance(raised.value.__cause__, ZeroDivisionError)
    bench.thread.close()


def test_requests_that_were_in_the_inbox_at_the_death_hear_of_it() -> None:
    bench = Bench()
    request, recorder = bench.request("just too late")
    may_die, has_submitted = threading.Event(), threading.Event()

    def die_slowly() -> None:
        may_die.set()
        assert has_submitted.wait(PATIENCE_S)
        raise MemoryError("gone")

    bench.thread._send(die_slowly)
    assert may_die.wait(PATIENCE_S)
    bench.thread.submit([request])
    has_submitted.set()
    error = recorder.end().error
    assert isinstance(error, EngineDeadError) and isinstance(error.__cause__, MemoryError)


def test_closing_ends_pending_requests_with_an_error_and_the_thread() -> None:
    bench = Bench(max_position=100_000, num_kv_blocks=20_000)
    pairs = [bench.request(f"r{index}", max_tokens=60_000, ignore_eos=True) for index in range(6)]
    bench.thread.submit([request for request, _ in pairs])
    bench.thread.close()
    for _, recorder in pairs:
        assert isinstance(recorder.end().error, EngineDeadError)
    assert not bench.thread._thread.is_alive()
    bench.thread.close()
    bench.thread.abort([pairs[0][0]])
    with pytest.raises(EngineDeadError, match="closed"):
        bench.thread.submit([bench.request("late")[0]])


def test_a_listener_may_close_the_thread_it_runs_on() -> None:
    bench = Bench()
    request, recorder = bench.request("closes")
    has_closed = threading.Event()

    def closing(update: TokenUpdate) -> None:
        recorder(update)
        bench.thread.close()
        has_closed.set()

    request.listener = closing
    bench.thread.submit([request])
    recorder.end()
    bench.thread._thread.join(PATIENCE_S)
    assert has_closed.is_set() and not bench.thread._thread.is_alive()
