"""The invariants on random traffic: arrivals and aborts at any moment, tiny pools, every policy, sync and async."""

from dataclasses import dataclass, field

from hypothesis import given, settings
from hypothesis import strategies as st

from jitney.types import FinishReason, Request

from .toy_engine import ToyEngine, check_idle, expected_tokens, recorder, toy_engine, toy_request


@dataclass
class Arrival:
    step: int
    prompt: list[int]
    max_tokens: int
    priority: int
    salt: str
    abort_after: int | None
    request: Request = field(init=False)


arrivals = st.lists(
    st.builds(
        Arrival,
        step=st.integers(0, 12),
        prompt=st.lists(st.integers(0, 2), min_size=1, max_size=14),
        max_tokens=st.integers(1, 10),
        priority=st.integers(-1, 1),
        salt=st.sampled_from(["", "", "tenant"]),
        abort_after=st.none() | st.integers(0, 12),
    ),
    min_size=1,
    max_size=10,
)
engines = st.fixed_dictionaries(
    {
        "batching_policy": st.sampled_from(["continuous", "continuous", "static", "dynamic", "sequential"]),
        "scheduling_policy": st.sampled_from(["fcfs", "priority"]),
        "async_scheduling": st.booleans(),
        "max_steps_in_flight": st.sampled_from([2, 3]),
        "enable_prefix_caching": st.booleans(),
        "block_size": st.sampled_from([1, 3, 4, 16]),
        "max_num_seqs": st.integers(1, 5),
        "max_num_batched_tokens": st.integers(5, 20),
        "prefill_chunk_size": st.sampled_from([None, 1, 3]),
        "num_host_kv_blocks": st.sampled_from([0, 3, 10, 200]),
    }
)
spare_blocks = st.integers(0, 12)


def build(config: dict, spare: int) -> ToyEngine:
    """A pool that holds the longest request (24 tokens), and `spare` blocks more."""
    return toy_engine(num_kv_blocks=-(-24 // config["block_size"]) + spare, **config)


def drive(engine: ToyEngine, traffic: list[Arrival]) -> None:
    """Play the traffic, one engine step a tick, until everything has ended."""
    for index, arrival in enumerate(traffic):
        arrival.request = toy_request(
            engine.limits,
            str(index),
            arrival.prompt,
            max_tokens=arrival.max_tokens,
            priority=arrival.priority,
            salt=arrival.salt,
        )
    tick, most = 0, 3000
    while engine.has_work or any(tick <= arrival.step for arrival in traffic):
        for index, arrival in enumerate(traffic):
            if arrival.step == tick:
                engine.add(arrival.request)
            if arrival.abort_after is not None and arrival.step + arrival.abort_after == tick:
                engine.abort(str(index))
        if not engine.step() and (wake := engine.wake_time()) is not None:
            engine.device.wait_until(wake)
        tick += 1
        assert tick < most, "the traffic does not come to an end"


def was_injected(request: Request) -> bool:
    """Whether the request ended by a failure that the test had planned."""
    assert request.error is not None
    return isinstance(request.error.__cause__, RuntimeError) or "NaN" in str(request.error)


@given(arrivals, engines, spare_blocks)
@settings(max_examples=300, deadline=None)
def test_every_request_ends_once_with_the_tokens_it_would_have_alone(
    traffic: list[Arrival], config: dict, spare: int
) -> None:
    engine = build(config, spare)
    drive(engine, traffic)
    check_idle(engine)
    for arrival in traffic:
        request, heard = arrival.request, recorder(arrival.request)
        wanted = expected_tokens(request)
        assert len(heard.ends) == 1 and heard.ends[0].finish_reason is request.finish_reason
        assert heard.tokens == request.output_token_ids
        if request.finish_reason is FinishReason.ABORT:
            assert arrival.abort_after is not None
            assert request.output_token_ids == wanted[: len(request.output_token_ids)]
        else:
            by_stop = wanted[-1] in request.stop_token_ids
            assert request.finish_reason is (FinishReason.STOP if by_stop else FinishReason.LENGTH), request.error
            assert request.output_token_ids == wanted


@given(arrivals, engines, spare_blocks)
@settings(max_examples=100, deadline=None)
def test_first_come_first_served_seats_requests_in_order_of_arrival(
    traffic: list[Arrival], config: dict, spare: int
) -> None:
    engine = build(config | {"scheduling_policy": "fcfs"}, spare)
    drive(engine, traffic)
    requests = sorted((arrival.request for arrival in traffic), key=lambda request: request.arrival_index)
    seated = [request.metrics.first_scheduled_time for request in requests]
    times = [time for time in seated if time is not None]
    assert times == sorted(times)


@given(arrivals, engines, spare_blocks, st.sets(st.integers(0, 25), max_size=5), st.integers(0, 4))
@settings(max_examples=200, deadline=None)
def test_failed_steps_and_nan_rows_cost_only_the_requests_they_carried(
    traffic: list[Arrival], config: dict, spare: int, bad_steps: set[int], nan_row: int
) -> None:
    engine = build(config, spare)
    fail_steps(engine, bad_steps, nan_row)
    drive(engine, traffic)
    check_all_but_the_failed(traffic, bad_steps)
    check_idle(engine)


def fail_steps(engine: ToyEngine, bad_steps: set[int], nan_row: int) -> None:
    ordered = sorted(bad_steps)
    engine.runner.failing_steps = set(ordered[::3])
    engine.runner.nan_steps = dict.fromkeys(ordered[1::3], nan_row)
    engine.device.refused_steps = set(ordered[2::3])


def check_all_but_the_failed(traffic: list[Arrival], bad_steps: set[int]) -> None:
    for arrival in traffic:
        request = arrival.request
        wanted = expected_tokens(request)
        assert len(recorder(request).ends) == 1
        if request.finish_reason is FinishReason.ERROR:
            assert bad_steps and was_injected(request)
            assert request.output_token_ids == wanted[: len(request.output_token_ids)]
        elif request.finish_reason is not FinishReason.ABORT:
            assert request.output_token_ids == wanted


crowds = st.lists(
    st.builds(
        Arrival,
        step=st.integers(0, 6),
        prompt=st.lists(st.integers(0, 2), min_size=1, max_size=8),
        max_tokens=st.integers(6, 16),
        priority=st.integers(-1, 1),
        salt=st.just(""),
        abort_after=st.none() | st.integers(0, 30),
    ),
    min_size=4,
    max_size=9,
)
tight_engines = st.fixed_dictionaries(
    {
        "scheduling_policy": st.sampled_from(["fcfs", "priority"]),
        "async_scheduling": st.booleans(),
        "max_steps_in_flight": st.sampled_from([2, 3]),
        "enable_prefix_caching": st.booleans(),
        "block_size": st.sampled_from([1, 2, 3, 4]),
        "max_model_len": st.just(24),
        "max_num_seqs": st.integers(3, 6),
        "num_host_kv_blocks": st.sampled_from([0, 8, 200, 200]),
    }
)
ways_to_prefill = st.fixed_dictionaries(
    {"max_num_batched_tokens": st.integers(6, 20), "prefill_chunk_size": st.sampled_from([None, 1, 3])}
) | st.just({"max_num_batched_tokens": 29, "enable_chunked_prefill": False})


@given(crowds, tight_engines, ways_to_prefill, st.integers(0, 3), st.sets(st.integers(3, 40), max_size=4))
@settings(max_examples=300, deadline=None)
def test_requests_that_lose_their_seat_go_on_from_blocks_on_the_host_or_from_nothing(
    traffic: list[Arrival], config: dict, prefill: dict, spare: int, bad_steps: set[int]
) -> None:
    engine = build(config | prefill, spare)
    fail_steps(engine, bad_steps, nan_row=1)
    drive(engine, traffic)
    check_all_but_the_failed(traffic, bad_steps)
    check_idle(engine)


@given(arrivals, engines, spare_blocks)
@settings(max_examples=100, deadline=None)
def test_rows_that_end_by_length_are_never_overrun(traffic: list[Arrival], config: dict, spare: int) -> None:
    engine = build(config | {"batching_policy": "continuous"}, spare)
    for arrival in traffic:
        arrival.abort_after = None
    drive(engine, traffic)
    stops = sum(arrival.request.finish_reason is FinishReason.STOP for arrival in traffic)
    wasted = int(engine.records.since()["num_wasted_rows"].sum())
    assert wasted <= stops * (engine.config.depth - 1)


alike = st.lists(
    st.builds(
        Arrival,
        step=st.integers(0, 8),
        prompt=st.integers(4, 14).map(lambda length: [1] * length),
        max_tokens=st.integers(1, 6),
        priority=st.just(0),
        salt=st.just(""),
        abort_after=st.none(),
    ),
    min_size=2,
    max_size=8,
)


@given(alike, st.sampled_from([1, 2, 3]), st.sampled_from([1, 2, 4]), st.integers(0, 6), st.booleans())
@settings(max_examples=400, deadline=None)
def test_nothing_built_on_a_failed_step_is_found_by_requests_that_start_alike(
    traffic: list[Arrival], block_size: int, chunk: int, bad_step: int, is_refused: bool
) -> None:
    config = {"block_size": block_size, "prefill_chunk_size": chunk, "max_num_batched_tokens": 8, "max_num_seqs": 4}
    engine = build(config, spare=40)
    if is_refused:
        engine.device.refused_steps = {bad_step}
    else:
        engine.runner.failing_steps = {bad_step}
    drive(engine, traffic)
    check_idle(engine)
    for arrival in traffic:
        request = arrival.request
        if request.finish_reason is FinishReason.ERROR:
            assert was_injected(request)
        else:
            assert request.output_token_ids == expected_tokens(request)
