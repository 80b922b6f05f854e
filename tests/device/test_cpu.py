import os
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from jitney.device.base import Device, Ticket
from jitney.device.cpu import CpuDevice
from jitney.errors import EngineDeadError
from jitney.types import StepInputs, StepOutput

ROOT = Path(__file__).parents[2]


def step(step_id: int) -> StepInputs:
    return StepInputs(step_id, 0, 0, 0, 0, 0, np.empty(0, np.int32), (), ())


class Runner:
    """Gives back the step's id; waits at `gate`, fails on negative ids, remembers order and threads."""

    def __init__(self) -> None:
        self.gate = threading.Event()
        self.gate.set()
        self.ran: list[int] = []
        self.threads: set[threading.Thread] = set()

    def run(self, inputs: StepInputs) -> StepOutput:
        assert self.gate.wait(10)
        self.ran.append(inputs.step_id)
        self.threads.add(threading.current_thread())
        if inputs.step_id < 0:
            raise ValueError(f"step {inputs.step_id}")
        return StepOutput(np.array([inputs.step_id], np.int32), np.array([True]))


@pytest.fixture
def runner():
    return Runner()


@pytest.fixture
def device(runner):
    device: Device = CpuDevice(runner)
    yield device
    runner.gate.set()
    device.close()


def test_submit_returns_before_the_step_is_done(device, runner):
    runner.gate.clear()
    ticket: Ticket = device.submit(step(1))
    assert not ticket.done() and runner.ran == []
    runner.gate.set()
    assert ticket.result().token_ids.tolist() == [1]
    assert ticket.done()


def test_steps_run_in_order_on_one_thread_of_their_own(device, runner):
    tickets = [device.submit(step(i)) for i in range(20)]
    assert [int(t.result().token_ids[0]) for t in tickets] == runner.ran == list(range(20))
    assert len(runner.threads) == 1 and threading.current_thread() not in runner.threads


def test_spans_follow_each_other_on_the_devices_clock(device):
    before = device.now()
    tickets = [device.submit(step(i)) for i in range(3)]
    for ticket in tickets:
        ticket.result()
    times = [before, *(t for ticket in tickets for t in ticket.span()), device.now()]
    assert times == sorted(times)


def test_a_failed_step_raises_from_its_ticket_and_the_next_one_runs(device):
    failed, good = device.submit(step(-1)), device.submit(step(2))
    with pytest.raises(ValueError, match="step -1"):
        failed.result()
    start, end = failed.span()
    assert 0 < start <= end
    assert good.result().token_ids.tolist() == [2]


def test_waiting_lets_the_clock_reach_the_time(device):
    until = device.now() + 0.01
    device.wait_until(until)
    assert device.now() >= until
    device.wait_until(until - 100)


def test_host_buffers_are_writable_int32(device):
    buffer = device.host_buffer(5)
    buffer[:] = 7
    assert buffer.dtype == np.int32 and buffer.tolist() == [7] * 5


def test_closing_finishes_what_was_submitted_and_leaves_no_thread(device, runner):
    runner.gate.clear()
    tickets = [device.submit(step(i)) for i in range(3)]
    with ThreadPoolExecutor(1) as pool:
        closing = pool.submit(device.close)
        runner.gate.set()
        closing.result(10)
    assert all(t.done() for t in tickets) and runner.ran == [0, 1, 2]
    assert not any(thread.is_alive() for thread in runner.threads)


def test_closing_twice_is_harmless_and_later_steps_are_refused(device):
    device.close()
    device.close()
    with pytest.raises(EngineDeadError):
        device.submit(step(1))


FORKS = """
import os, sys, time
import numpy as np
from jitney.device.cpu import CpuDevice
from jitney.engine.engine_thread import EngineThread
from jitney.errors import EngineDeadError
from jitney.runner.toy import NullRunner
from jitney.types import StepInputs
from tests.engine.toy_engine import toy_engine

device, thread = CpuDevice(NullRunner()), EngineThread(toy_engine())
device.submit(StepInputs(0, 0, 0, 0, 0, 0, np.empty(0, np.int32), (), ())).result()
if child := os.fork():
    sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
refused = 0
for call in (lambda: device.submit(None), lambda: thread.submit([])):
    try:
        call()
    except EngineDeadError:
        refused += 1
device.close(), thread.close()
sys.exit(0 if refused == 2 and not thread.is_alive else 1)
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")
def test_a_forked_process_is_told_that_its_threads_are_gone() -> None:
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", FORKS], cwd=ROOT, timeout=60)
    assert done.returncode == 0
