"""Preempted requests whose blocks wait on the host, one behaviour at a time (see kv/swap_space.py)."""

from typing import Any

import pytest

from jitney.types import FinishReason, Request

from .toy_engine import ToyEngine, check_idle, expected_tokens, toy_engine, toy_request

TIGHT: dict[str, Any] = {"num_kv_blocks": 12, "max_position": 48, "enable_prefix_caching": False}
DEPTHS: list[dict[str, Any]] = [
    {"async_scheduling": False},
    {"max_steps_in_flight": 2},
    {"max_steps_in_flight": 3},
]


def crowd(engine: ToyEngine, start: int = 0) -> list[Request]:
    return [
        toy_request(engine.limits, str(start + index), [1 + index] * (4 + index), max_tokens=16, ignore_eos=True)
        for index in range(4)
    ]


def run(requests: list[Request], engine: ToyEngine) -> None:
    engine.add(*requests)
    engine.run_until_idle()
    check_idle(engine)


def num_computed(engine: ToyEngine) -> int:
    records = engine.records.since()
    return int((records["num_prompt_tokens"] + records["num_decode_rows"]).sum())


@pytest.mark.parametrize("depth", DEPTHS)
def test_with_swap_space_nothing_is_computed_twice_and_without_it_is(depth: dict[str, Any]) -> None:
    for num_host_blocks, is_recomputed in ((100, False), (0, True)):
        engine = toy_engine(**TIGHT, **depth, num_host_kv_blocks=num_host_blocks)
        requests = crowd(engine)
        run(requests, engine)
        assert engine.scheduler.num_preemptions > 0
        assert all(request.output_token_ids == expected_tokens(request) for request in requests)
        needed = sum(request.num_prompt_tokens + request.max_tokens - 1 for request in requests)
        assert (num_computed(engine) > needed) == is_recomputed
        records = engine.records.since()
        assert records["num_swapped_out"].sum() == records["num_swapped_in"].sum()
        assert (records["num_swapped_out"].sum() > 0) == (not is_recomputed)


def test_half_a_prompt_is_kept_too() -> None:
    engine = toy_engine(**TIGHT | {"num_kv_blocks": 10}, num_host_kv_blocks=100, prefill_chunk_size=3)
    old = toy_request(engine.limits, "old", [1] * 4, max_tokens=30, ignore_eos=True)
    long = toy_request(engine.limits, "long", [2] * 30, max_tokens=2, ignore_eos=True)
    run([old, long], engine)
    assert long.metrics.num_preemptions > 0
    assert num_computed(engine) == 4 + 29 + 30 + 1
    assert long.output_token_ids == expected_tokens(long)


def test_blocks_that_the_prefix_cache_still_has_are_not_copied_back() -> None:
    engine = toy_engine(**TIGHT | {"enable_prefix_caching": True}, num_host_kv_blocks=100)
    requests = [
        toy_request(engine.limits, str(index), [1] * 12 + [index], max_tokens=14, ignore_eos=True) for index in range(4)
    ]
    run(requests, engine)
    records = engine.records.since()
    assert 0 < records["num_swapped_in"].sum() < records["num_swapped_out"].sum()
    assert all(request.output_token_ids == expected_tokens(request) for request in requests)


def test_too_little_swap_space_means_computing_again() -> None:
    engine = toy_engine(**TIGHT, num_host_kv_blocks=1)
    requests = crowd(engine)
    run(requests, engine)
    assert engine.scheduler.num_preemptions > 0 and engine.records.since()["num_swapped_out"].sum() == 0
    assert all(request.output_token_ids == expected_tokens(request) for request in requests)


def test_a_request_that_is_aborted_while_it_waits_gives_its_host_blocks_back() -> None:
    engine = toy_engine(**TIGHT, num_host_kv_blocks=100)
    requests = crowd(engine)
    engine.add(*requests)
    swap_space = engine.scheduler.seating.swap_space
    while swap_space.num_free == swap_space.num_blocks:
        engine.step()
    (waiting,) = [request for request in requests if swap_space.num_tokens(request.arrival_index)]
    engine.abort(waiting.request_id)
    assert swap_space.num_free == swap_space.num_blocks
    engine.run_until_idle()
    check_idle(engine)
    assert waiting.finish_reason is FinishReason.ABORT


@pytest.mark.parametrize("is_refused", [True, False])
@pytest.mark.parametrize("depth", DEPTHS)
@pytest.mark.parametrize("caching", [True, False])
def test_a_lost_step_takes_its_copies_with_it(depth: dict[str, Any], caching: bool, is_refused: bool) -> None:
    """Each step that copies is lost once. Those who start like its requests come later: nobody finds garbage."""
    settings: dict[str, Any] = TIGHT | depth | {"num_host_kv_blocks": 100, "enable_prefix_caching": caching}
    engine = toy_engine(**settings)
    run(crowd(engine), engine)
    records = engine.records.since()
    copying = records["step_id"][(records["num_swapped_out"] > 0) | (records["num_swapped_in"] > 0)].tolist()
    assert copying
    for step_id in copying:
        engine = toy_engine(**settings)
        if is_refused:
            engine.device.refused_steps = {step_id}
        else:
            engine.runner.failing_steps = {step_id}
        requests = crowd(engine)
        run(requests, engine)
        again = crowd(engine, start=len(requests))
        run(again, engine)
        assert any(request.finish_reason is FinishReason.ERROR for request in requests)
        for request in requests + again:
            if request.finish_reason is FinishReason.ERROR:
                assert request.error is not None and isinstance(request.error.__cause__, RuntimeError)
                assert request in requests, "the retry came after the lost step"
            else:
                assert request.output_token_ids == expected_tokens(request)


def test_blocks_shared_with_a_step_in_flight_are_not_kept_before_the_own_first_step() -> None:
    """The last one is seated on blocks that the failing step is to fill, and preempted before it has computed."""
    engine = toy_engine(
        num_kv_blocks=16, max_position=9, num_host_kv_blocks=100, block_size=1, max_num_seqs=3,
        max_num_batched_tokens=11, enable_chunked_prefill=False,
    )  # fmt: skip
    old = toy_request(engine.limits, "old", [3, 3], max_tokens=6, ignore_eos=True)
    engine.add(old)
    engine.step()
    engine.step()
    first = toy_request(engine.limits, "first", [1] * 6, max_tokens=3, ignore_eos=True)
    alike = toy_request(engine.limits, "alike", [1, 1, 2, 2, 2, 2, 2], max_tokens=1)
    engine.runner.failing_steps = {engine.records.num_steps + 1}
    engine.add(first, alike)
    engine.step()
    assert alike.slot is not None and alike.metrics.num_cached_tokens == 2
    engine.run_until_idle()
    check_idle(engine)
    assert first.finish_reason is FinishReason.ERROR
    assert alike.output_token_ids == expected_tokens(alike), alike.error
