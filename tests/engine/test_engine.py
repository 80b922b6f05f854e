"""The engine's behaviours one by one, on the simulated device."""

import pytest

from jitney.errors import DuplicateRequestError, EngineDeadError, RequestError
from jitney.types import FinishReason, TokenUpdate

from .toy_engine import check_idle, expected_tokens, recorder, toy_engine, toy_request


def test_a_request_that_read_blocks_of_a_failed_step_starts_again() -> None:
    engine = toy_engine(async_scheduling=True, max_num_batched_tokens=64)
    first = toy_request(engine.limits, "first", [1] * 12)
    second = toy_request(engine.limits, "second", [1] * 12)
    engine.runner.failing_steps = {0}
    engine.add(first)
    engine.step()
    engine.add(second)
    engine.step()  # the second is planned on the first's blocks, then the first's step fails
    assert second.metrics.num_cached_tokens == 8
    engine.run_until_idle()
    assert first.finish_reason is FinishReason.ERROR
    assert "caught fire" in str(first.error)
    assert second.output_token_ids == expected_tokens(second)
    assert second.metrics.num_preemptions == 1
    check_idle(engine)


def test_what_was_computed_on_top_of_a_failed_step_is_not_offered_either() -> None:
    engine = toy_engine(async_scheduling=True, max_num_batched_tokens=8)
    request = toy_request(engine.limits, "first", [1] * 24)
    engine.runner.failing_steps = {0}
    engine.add(request)
    engine.step()
    engine.step()  # the second chunk is in flight, its blocks on offer, when the first chunk's step fails
    assert request.finish_reason is FinishReason.ERROR
    engine.run_until_idle()
    cache = engine.scheduler.seating.prefix_cache
    assert cache is not None and len(cache) == 0
    check_idle(engine)


def test_requests_that_start_alike_share_blocks_even_in_the_same_step() -> None:
    engine = toy_engine()
    requests = [toy_request(engine.limits, str(index), [1] * 12) for index in range(4)]
    engine.add(*requests)
    engine.run_until_idle()
    assert [request.metrics.num_cached_tokens for request in requests] == [0, 8, 8, 8]
    assert all(request.output_token_ids == expected_tokens(request) for request in requests)


def test_different_salts_never_share_blocks() -> None:
    engine = toy_engine()
    ours = toy_request(engine.limits, "ours", [1] * 12, salt="ours")
    theirs = toy_request(engine.limits, "theirs", [1] * 12, salt="theirs")
    again = toy_request(engine.limits, "again", [1] * 12, salt="ours")
    engine.add(ours, theirs, again)
    engine.run_until_idle()
    assert [request.metrics.num_cached_tokens for request in (ours, theirs, again)] == [0, 0, 8]


def test_a_second_turn_finds_the_first_turns_output_in_the_cache() -> None:
    engine = toy_engine()
    first = toy_request(engine.limits, "first", [1, 2, 3], max_tokens=14, ignore_eos=True)
    engine.add(first)
    engine.run_until_idle()
    second = toy_request(engine.limits, "second", [1, 2, 3, *first.output_token_ids, 5])
    engine.add(second)
    engine.run_until_idle()
    assert second.metrics.num_cached_tokens == 16
    assert second.output_token_ids == expected_tokens(second)


def test_without_prefix_caching_nothing_is_shared() -> None:
    engine = toy_engine(enable_prefix_caching=False)
    requests = [toy_request(engine.limits, str(index), [1] * 12) for index in range(3)]
    engine.add(*requests)
    engine.run_until_idle()
    assert all(request.metrics.num_cached_tokens == 0 for request in requests)


def test_an_id_in_use_is_refused_and_the_first_request_goes_on() -> None:
    engine = toy_engine()
    first = toy_request(engine.limits, "same", [1, 2])
    engine.add(first)
    engine.step()
    with pytest.raises(DuplicateRequestError, match="'same'"):
        engine.add(toy_request(engine.limits, "new", [1]), toy_request(engine.limits, "same", [3]))
    assert engine.num_unfinished == 1, "all or none"
    engine.run_until_idle()
    assert first.output_token_ids == expected_tokens(first)
    engine.add(toy_request(engine.limits, "same", [3]))  # free again


def test_a_listener_that_raises_ends_its_own_request_only() -> None:
    engine = toy_engine()
    loud = toy_request(engine.limits, "loud", [1, 2], ignore_eos=True)
    calm = toy_request(engine.limits, "calm", [1, 2], ignore_eos=True)

    def raise_on_the_third(update: TokenUpdate) -> None:
        if len(heard) == 2:
            raise KeyError("lost")
        heard.append(update)

    heard: list[TokenUpdate] = []
    loud.listener = raise_on_the_third
    engine.add(loud, calm)
    engine.run_until_idle()
    assert loud.finish_reason is FinishReason.ERROR
    assert isinstance(loud.error, RequestError) and "KeyError" in str(loud.error)
    assert calm.output_token_ids == expected_tokens(calm)
    check_idle(engine)


def test_a_nan_row_fails_alone_and_its_blocks_are_not_offered() -> None:
    engine = toy_engine()
    sick = toy_request(engine.limits, "sick", [1] * 12)
    well = toy_request(engine.limits, "well", [2] * 12)
    engine.runner.nan_steps = {0: 0}
    engine.add(sick, well)
    engine.run_until_idle()
    assert sick.finish_reason is FinishReason.ERROR and "NaN" in str(sick.error)
    assert well.output_token_ids == expected_tokens(well)
    retry = toy_request(engine.limits, "retry", [1] * 12)
    engine.add(retry)
    engine.run_until_idle()
    assert retry.metrics.num_cached_tokens == 0
    assert retry.output_token_ids == expected_tokens(retry)


@pytest.mark.parametrize("async_scheduling", [True, False])
def test_an_abort_in_flight_frees_the_seat_within_two_steps(async_scheduling: bool) -> None:
    engine = toy_engine(async_scheduling=async_scheduling)
    request = toy_request(engine.limits, "gone", [1] * 12, max_tokens=50, ignore_eos=True)
    engine.add(request)
    for _ in range(5):
        engine.step()
    assert engine.abort("gone")
    assert not engine.abort("gone"), "the second abort finds nothing"
    engine.step()
    engine.step()
    check_idle(engine)
    assert recorder(request).ends[0].finish_reason is FinishReason.ABORT
    assert request.output_token_ids == recorder(request).tokens


def test_a_dead_engine_ends_every_request_and_refuses_new_ones() -> None:
    engine = toy_engine()
    requests = [toy_request(engine.limits, str(index), [1, 2, 3]) for index in range(6)]
    engine.add(*requests)
    engine.step()
    engine.device.close()  # the device is gone: the engine cannot go on
    with pytest.raises(EngineDeadError, match="closed"):
        engine.run_until_idle()
    for request in requests:
        assert isinstance(request.error, EngineDeadError) and len(recorder(request).ends) == 1
    with pytest.raises(EngineDeadError):
        engine.add(toy_request(engine.limits, "late", [1]))
    with pytest.raises(EngineDeadError):
        engine.step()


def test_closing_twice_is_harmless_and_ends_requests() -> None:
    engine = toy_engine()
    request = toy_request(engine.limits, "open", [1, 2, 3])
    engine.add(request)
    engine.step()
    engine.close()
    engine.close()
    assert recorder(request).ends[0].finish_reason is FinishReason.ABORT


def test_a_tiny_pool_makes_newer_requests_wait_but_never_the_oldest() -> None:
    engine = toy_engine(num_kv_blocks=16, max_position=64, block_size=2, max_num_seqs=8)
    requests = [
        toy_request(engine.limits, str(index), [1 + index % 2] * 8, max_tokens=16, ignore_eos=True)
        for index in range(20)
    ]
    engine.add(*requests)
    engine.run_until_idle()
    assert engine.scheduler.num_preemptions > 0
    assert requests[0].metrics.num_preemptions == 0
    assert all(request.output_token_ids == expected_tokens(request) for request in requests)
    assert engine.records.num_steps < 20 * 16 * 2, "preemption must not cost more than running one by one, twice over"
    check_idle(engine)


def test_priority_goes_first_and_is_preempted_last() -> None:
    engine = toy_engine(scheduling_policy="priority", max_num_seqs=1)
    low = toy_request(engine.limits, "low", [1], priority=5)
    high = toy_request(engine.limits, "high", [1], priority=-5)
    engine.add(low, high)
    engine.run_until_idle()
    assert high.metrics.first_token_time is not None and low.metrics.first_scheduled_time is not None
    assert high.metrics.first_scheduled_time == 0.0
    assert high.metrics.first_token_time < low.metrics.first_scheduled_time


def test_static_batching_computes_finished_rows_until_their_batch_ends() -> None:
    engine = toy_engine(batching_policy="static", max_num_seqs=2)
    short = toy_request(engine.limits, "short", [1], max_tokens=2, ignore_eos=True)
    long = toy_request(engine.limits, "long", [1], max_tokens=20, ignore_eos=True)
    after = toy_request(engine.limits, "after", [1], max_tokens=2, ignore_eos=True)
    engine.add(short, long, after)
    engine.run_until_idle()
    assert long.metrics.finished_time is not None and after.metrics.first_scheduled_time is not None
    assert after.metrics.first_scheduled_time >= long.metrics.finished_time
    assert engine.records.since()["num_wasted_rows"].sum() >= 16, "the short one's seat burns"


def test_dynamic_batching_waits_for_its_window_or_a_full_house() -> None:
    engine = toy_engine(batching_policy="dynamic", max_num_seqs=2, dynamic_batching_window_s=5.0)
    lonely = toy_request(engine.limits, "lonely", [1])
    engine.add(lonely)
    engine.run_until_idle()
    assert lonely.metrics.first_scheduled_time == 5.0
    pair = [toy_request(engine.limits, str(index), [1]) for index in range(2)]
    start = engine.device.now()
    engine.add(*pair)
    engine.run_until_idle()
    assert [request.metrics.first_scheduled_time for request in pair] == [start, start]


def test_a_long_prompt_does_not_hold_up_running_streams() -> None:
    engine = toy_engine(max_num_batched_tokens=8, max_position=200, num_kv_blocks=100)
    stream = toy_request(engine.limits, "stream", [1], max_tokens=30, ignore_eos=True)
    engine.add(stream)
    for _ in range(4):
        engine.step()
    engine.add(toy_request(engine.limits, "long", [1] * 100, max_tokens=2))
    engine.run_until_idle()
    records = engine.records.since()
    mixed = records[records["num_prompt_tokens"] > 1]
    assert len(mixed) > 10 and (mixed["num_decode_rows"] >= 1).sum() >= len(mixed) - 2
    assert (records["num_decode_rows"] + records["num_prompt_tokens"] <= 8).all()


def test_async_hides_the_host_and_sync_does_not() -> None:
    times = {}
    for is_async in (True, False):
        engine = toy_engine(async_scheduling=is_async, host_cost_s=0.004)
        engine.add(toy_request(engine.limits, "0", [1], max_tokens=100, ignore_eos=True))
        engine.run_until_idle()
        times[is_async] = engine.device.now()
    step, host = 0.0101, 0.004
    assert times[False] == pytest.approx(100 * (step + host), rel=0.01)
    assert times[True] == pytest.approx(100 * step + host, rel=0.01)


def test_a_failed_step_leaves_a_record_too() -> None:
    engine = toy_engine()
    engine.runner.failing_steps = {1}
    engine.add(toy_request(engine.limits, "0", [1, 2, 3], ignore_eos=True))
    engine.run_until_idle()
    records = engine.records.since()
    assert records["step_id"].tolist()[:2] == [0, 1]
    assert records["num_new_tokens"].tolist()[:2] == [1, 0] and records["num_wasted_rows"][1] == 1


def test_a_blocked_head_of_the_queue_enters_as_soon_as_blocks_are_released() -> None:
    engine = toy_engine(num_kv_blocks=8, max_position=32)
    first = toy_request(engine.limits, "first", [1] * 14, max_tokens=6, ignore_eos=True)
    second = toy_request(engine.limits, "second", [2] * 22, max_tokens=2, ignore_eos=True)
    engine.add(first, second)
    engine.run_until_idle()
    assert second.metrics.first_scheduled_time is not None and first.metrics.finished_time is not None
    assert second.metrics.first_scheduled_time == first.metrics.finished_time
    assert second.output_token_ids == expected_tokens(second)


def test_a_blocked_head_of_the_queue_enters_when_another_computes_its_prefix() -> None:
    engine = toy_engine(num_kv_blocks=12, max_position=48, max_num_batched_tokens=8, prefill_chunk_size=4)
    long = toy_request(engine.limits, "long", [1] * 32, max_tokens=8, ignore_eos=True)
    same = toy_request(engine.limits, "same", [1] * 30, max_tokens=2, ignore_eos=True)
    engine.add(long, same)
    engine.run_until_idle()
    assert same.metrics.first_scheduled_time is not None and long.metrics.finished_time is not None
    assert same.metrics.first_scheduled_time < long.metrics.finished_time
    assert same.metrics.num_cached_tokens > 0
    assert same.output_token_ids == expected_tokens(same)


def test_a_seat_left_by_length_is_taken_in_the_very_next_step() -> None:
    steps = {}
    for is_async in (True, False):
        engine = toy_engine(async_scheduling=is_async, max_num_seqs=2)
        for index in range(8):
            engine.add(toy_request(engine.limits, str(index), [index], max_tokens=3 + index % 2, ignore_eos=True))
        engine.run_until_idle()
        check_idle(engine)
        steps[is_async] = engine.records.num_steps
    assert steps[True] == steps[False]


def test_nobody_is_preempted_for_blocks_that_a_last_step_is_about_to_give_back() -> None:
    engine = toy_engine(num_kv_blocks=3, max_position=12)
    ending = toy_request(engine.limits, "ending", [1] * 4, max_tokens=2, ignore_eos=True)
    growing = toy_request(engine.limits, "growing", [2] * 3, max_tokens=6, ignore_eos=True)
    engine.add(ending, growing)
    engine.run_until_idle()
    check_idle(engine)
    assert engine.scheduler.num_preemptions == 0
    assert growing.output_token_ids == expected_tokens(growing)


def test_a_refused_step_takes_its_table_updates_with_it_and_no_later_step_runs_on_stale_ones() -> None:
    for refused in range(6):
        engine = toy_engine(block_size=1, max_num_seqs=2)
        engine.device.refused_steps = {refused}
        requests = [toy_request(engine.limits, str(i), [i] * 3, max_tokens=5, ignore_eos=True) for i in range(6)]
        engine.add(*requests)
        engine.run_until_idle()
        check_idle(engine)
        failed = [request for request in requests if request.finish_reason is FinishReason.ERROR]
        assert 1 <= len(failed) <= 2
        for request in requests:
            if request not in failed:
                assert request.output_token_ids == expected_tokens(request)


def test_steps_behind_a_failed_one_write_into_no_block_but_their_own() -> None:
    """The failed step seats a request in a used slot; the step behind it decodes there."""
    engine = toy_engine(block_size=3, prefill_chunk_size=4, max_num_batched_tokens=8)
    engine.runner.failing_steps = {6}
    texts = [(4, 6), (6, 1), (4, 2), (7, 1)]
    requests = [
        toy_request(engine.limits, str(index), [1] * length, max_tokens=count)
        for index, (length, count) in enumerate(texts)
    ]
    engine.add(*requests[:2])
    for _ in range(6):
        engine.step()
    engine.add(requests[2])
    engine.step()
    engine.add(requests[3])
    engine.run_until_idle()
    check_idle(engine)
    assert requests[2].finish_reason is FinishReason.ERROR
    assert requests[3].output_token_ids == expected_tokens(requests[3])
