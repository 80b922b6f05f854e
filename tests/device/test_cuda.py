"""The CUDA device's own code on a stream library that finds races (fake_streams.py)."""

from contextlib import suppress
from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from jitney.device.base import Device, Ticket
from jitney.device.cuda import CudaDevice
from jitney.errors import EngineDeadError
from jitney.types import FinishReason, StepInputs, StepOutput
from tests.engine.test_invariants import Arrival, arrivals, drive, was_injected
from tests.engine.toy_engine import check_idle, expected_tokens, recorder

from .cuda_toys import AsyncToyRunner, cuda_toy_engine, fake_streams
from .fake_streams import HOST, DeviceFault, FakeStreams

MODES = ["late", "early", "random"]


class EchoRunner:
    """Gives back its inputs; fails where they begin with a negative number."""

    def run(self, inputs: StepInputs) -> StepOutput:
        data = inputs.data.copy()
        if data[0] == -1:
            raise torch.OutOfMemoryError("out of memory")
        if data[0] == -2:
            raise EngineDeadError("the block tables could not be updated")
        return StepOutput(data, np.ones(len(data), np.bool_))


def step(device: Device, *values: int) -> StepInputs:
    buffer = device.host_buffer(16)
    buffer[: len(values)] = values
    return StepInputs(values[0], len(values), 0, 0, 0, 0, buffer[: len(values)], (), ())


def tokens(ticket: Ticket) -> list[int]:
    return ticket.result().token_ids.tolist()


@pytest.fixture
def library() -> FakeStreams:
    return fake_streams(0, "late")


@pytest.fixture
def runner() -> AsyncToyRunner:
    return AsyncToyRunner(EchoRunner())


@pytest.fixture
def device(library, runner) -> CudaDevice:
    return CudaDevice(runner, library, depth=2)


engines = st.fixed_dictionaries(
    {
        "batching_policy": st.sampled_from(["continuous", "continuous", "static", "sequential"]),
        "max_steps_in_flight": st.sampled_from([1, 2, 3]),
        "enable_prefix_caching": st.booleans(),
        "block_size": st.sampled_from([1, 3, 4]),
        "max_num_seqs": st.integers(1, 5),
        "max_num_batched_tokens": st.integers(5, 20),
        "prefill_chunk_size": st.sampled_from([None, 1, 3]),
    }
)


@given(
    arrivals, engines, st.integers(0, 12), st.sampled_from(MODES), st.integers(0, 2**32), st.sets(st.integers(0, 25))
)
@settings(max_examples=150, deadline=None)
def test_every_order_that_the_events_allow_gives_the_tokens_of_each_request_alone(
    traffic: list[Arrival], config: dict, spare: int, mode: str, seed: int, failing_steps: set[int]
) -> None:
    engine = cuda_toy_engine(fake_streams(seed, mode), -(-24 // config["block_size"]) + spare, **config)
    engine.runner.failing_steps = failing_steps
    drive(engine, traffic)
    check_idle(engine)
    assert engine.library.races == []
    for arrival in traffic:
        request, wanted = arrival.request, expected_tokens(arrival.request)
        assert len(recorder(request).ends) == 1
        if request.finish_reason is FinishReason.ERROR:
            assert failing_steps and was_injected(request)
        elif request.finish_reason is not FinishReason.ABORT:
            assert request.output_token_ids == wanted
    engine.close()


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("depth", [1, 2, 3])
def test_more_steps_than_buffers_may_be_in_flight(runner, mode, depth) -> None:
    library = fake_streams(depth, mode)
    device = CudaDevice(runner, library, depth)
    tickets = [device.submit(step(device, *range(i, 2 * i))) for i in range(1, 8)]
    assert [tokens(ticket) for ticket in tickets] == [list(range(i, 2 * i)) for i in range(1, 8)]
    assert library.races == []


@pytest.mark.parametrize("stream", ["h2d", "compute", "d2h", HOST])
@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("mode", MODES)
def test_each_wait_is_missed_when_it_is_left_out(runner, stream, seed, mode) -> None:
    library = fake_streams(seed, mode, without_waits_of=stream)
    device = CudaDevice(runner, library, depth=2)
    found = []
    tickets = [device.submit(step(device, i, i)) for i in range(6)]
    for ticket in tickets:
        try:
            found.append(tokens(ticket))
        except Exception:  # the device's own checks may see it first
            found.append([])
    was_seen = bool(library.races) or found != [[i, i] for i in range(6)]
    # a host that does not wait gets away with it where everything happens to have run already
    assert was_seen or (stream == HOST and mode != "late")


@pytest.mark.parametrize("stream", ["h2d", "compute", "d2h"])
def test_the_order_check_needs_no_unlucky_order_to_see_a_missing_wait(runner, stream) -> None:
    library = fake_streams(0, "early", without_waits_of=stream)
    device = CudaDevice(runner, library, depth=2)
    for i in range(4):
        device.submit(step(device, i))
    assert library.races


@given(st.integers(0, 2**32), st.sampled_from(["compute", "d2h"]))
@settings(max_examples=30, deadline=None)
def test_without_its_waits_the_engine_may_say_wrong_tokens_and_the_order_check_sees_why(seed: int, stream: str) -> None:
    engine = cuda_toy_engine(fake_streams(seed, "random", stream), 40, block_size=4, max_num_seqs=4)
    traffic = [Arrival(0, [1, 2, 0], 6, 0, "", None) for _ in range(3)]
    with suppress(EngineDeadError):
        drive(engine, traffic)
    assert engine.library.races


def test_submit_runs_nothing_and_waits_for_nothing(device, library, runner) -> None:
    ticket = device.submit(step(device, 5))
    assert (
        not ticket.done() and runner.data == [] and [len(stream.queue) > 0 for stream in library.streams] == [True] * 3
    )
    assert tokens(ticket) == [5] and ticket.done()
    assert tokens(ticket) == [5], "asking twice gives the same answer"


def test_a_result_waits_for_no_later_step(device, runner) -> None:
    first, second = device.submit(step(device, 1)), device.submit(step(device, 2))
    assert tokens(first) == [1]
    assert len(runner.data) == 1 and not second.done()


def test_exactly_the_used_length_travels(device, runner) -> None:
    for length in (9, 3, 14, 1):
        device.submit(step(device, *range(length))).result()
    assert [len(data) for data in runner.data] == [9, 3, 14, 1]


def test_a_buffer_whose_step_is_not_collected_is_refused(device) -> None:
    inputs = step(device, 1, 2)
    ticket = device.submit(inputs)
    with pytest.raises(AssertionError, match="has not been collected"):
        device.submit(inputs)
    ticket.result()
    assert tokens(device.submit(inputs)) == [1, 2]


def test_rewriting_inputs_that_are_still_to_be_copied_is_seen(device, library) -> None:
    inputs = step(device, 1, 2)
    ticket = device.submit(inputs)
    inputs.data[0] = 7
    ticket.result()
    assert library.races == ["the host rewrote memory that queued work still reads"]


def test_a_step_without_memory_fails_alone(device) -> None:
    good, bad, last = (device.submit(step(device, i)) for i in (1, -1, 3))
    assert tokens(good) == [1]
    for _ in range(2):
        with pytest.raises(torch.OutOfMemoryError):
            bad.result()
    assert bad.span()[0] <= bad.span()[1]
    assert tokens(last) == [3]


def test_a_runner_that_cannot_go_on_says_so_itself(device) -> None:
    with pytest.raises(EngineDeadError, match="block tables"):
        device.submit(step(device, -2)).result()


def test_a_gpu_that_fails_ends_the_engine_whichever_call_hears_of_it(device, library) -> None:
    first, second = device.submit(step(device, 1)), device.submit(step(device, 2))
    first.result()
    library.fault = DeviceFault("CUDA error: an illegal memory access was encountered")
    with pytest.raises(EngineDeadError, match="illegal memory access"):
        second.result()
    with pytest.raises(EngineDeadError, match="illegal memory access"):
        device.submit(step(device, 3))
    device.close()


def test_a_failed_step_on_a_gpu_that_has_failed_is_the_engines_end_and_not_only_the_steps(device, library) -> None:
    ticket = device.submit(step(device, -1))
    library.fault = DeviceFault("CUDA error")
    with pytest.raises(EngineDeadError, match="CUDA error"):
        ticket.result()


def test_spans_follow_each_other_on_the_hosts_clock(device) -> None:
    tickets = [device.submit(step(device, i)) for i in range(5)]
    for ticket in tickets:
        ticket.result()
    spans = [ticket.span() for ticket in tickets]
    assert all(start <= end for start, end in spans)
    assert all(before[1] <= after[0] + 1e-9 for before, after in pairwise(spans))


def test_closing_finishes_what_was_submitted_and_refuses_the_rest(device, runner) -> None:
    ticket = device.submit(step(device, 4))
    device.close()
    device.close()
    assert len(runner.data) == 1 and tokens(ticket) == [4]
    with pytest.raises(EngineDeadError, match="closed"):
        device.submit(step(device, 1))
