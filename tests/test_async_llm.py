import asyncio
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from itertools import pairwise
from random import Random
from typing import Any

import pytest

from jitney.async_llm import AsyncLLM
from jitney.errors import DuplicateRequestError, RequestError, StepFailedError
from jitney.outputs import RequestOutput
from jitney.sampling_params import SamplingParams

from .engine.toy_engine import check_idle
from .toy_llm import (
    ENDLESS,
    PARAMS,
    PATIENCE_S,
    PROMPTS,
    GatedRunner,
    last,
    run,
    text_of,
    toy_answer,
    toy_async_llm,
    toy_llm,
    toy_tokenizer,
    wait_for,
)


def wait_for_idle(llm: AsyncLLM) -> None:
    wait_for(lambda: not llm.engine.has_work)


@pytest.fixture(params=[True, False], ids=["async", "sync"])
def llm(request: pytest.FixtureRequest) -> Iterator[AsyncLLM]:
    llm = toy_async_llm(async_scheduling=request.param)
    yield llm
    wait_for_idle(llm)
    check_idle(llm.engine)
    assert not llm._streams
    llm.close()


# What comes out


def test_64_concurrent_iterators_all_finish_with_their_own_text(llm: AsyncLLM) -> None:
    prompts = [f"{a}{b}" for a in "abcdefgh" for b in "stuvwxyz"]

    async def main() -> list[RequestOutput]:
        return await asyncio.gather(*[last(llm.generate(prompt, PARAMS)) for prompt in prompts])

    assert [o.outputs[0].token_ids for o in run(main)] == [toy_answer(p, max_tokens=12) for p in prompts]


def test_outputs_grow_and_hold_everything_so_far(llm: AsyncLLM) -> None:
    async def main() -> list[RequestOutput]:
        return [output async for output in llm.generate("ride", ENDLESS)]

    outputs = run(main)
    for earlier, later in pairwise(outputs):
        assert text_of(later).startswith(text_of(earlier))
        assert len(later.outputs[0].token_ids) > len(earlier.outputs[0].token_ids) or later.finished
        assert not earlier.finished
    assert outputs[0].outputs[0].token_ids, "the first token was lost"
    assert outputs[-1].outputs[0].token_ids == toy_answer("ride", max_tokens=200, ignore_eos=True)
    assert outputs[-1].outputs[0].finish_reason == "length"


def test_the_outputs_are_those_of_llm(llm: AsyncLLM) -> None:
    text = toy_tokenizer().decode(toy_answer("ride", max_tokens=12, ignore_eos=True), skip_special_tokens=False)
    cases: list[SamplingParams] = [
        PARAMS,
        SamplingParams(max_tokens=12, seed=0, ignore_eos=True, stop=[text[4:6]]),
        SamplingParams(max_tokens=12, seed=0, ignore_eos=True, stop=[text[4:6]], include_stop_str_in_output=True),
        SamplingParams(max_tokens=12, seed=0, stop_token_ids=toy_answer("ride", max_tokens=12)[3:4]),
        SamplingParams(max_tokens=12, seed=0, n=3),
    ]

    async def main() -> list[RequestOutput]:
        return [await last(llm.generate("ride", params)) for params in cases]

    with toy_llm() as offline:
        expected = offline.generate(["ride"] * len(cases), cases, use_tqdm=False)
    assert [output.outputs for output in run(main)] == [output.outputs for output in expected]


def test_chat_goes_through_the_template(llm: AsyncLLM) -> None:
    output = run(lambda: last(llm.chat([{"role": "user", "content": "hi"}], PARAMS)))
    assert output.prompt == "user:hi\n>"
    assert output.outputs[0].token_ids == toy_answer("user:hi\n>", max_tokens=12)


def test_an_engine_that_was_idle_serves_the_next_request(llm: AsyncLLM) -> None:
    async def main() -> list[RequestOutput]:
        await asyncio.sleep(0.3)
        first = await last(llm.generate("ride", PARAMS))
        await asyncio.sleep(0.1)
        return [first, await last(llm.generate("ride", PARAMS))]

    first, second = run(main)
    assert first.outputs[0].token_ids == second.outputs[0].token_ids == toy_answer("ride", max_tokens=12)


def test_many_event_loops_share_one_engine(llm: AsyncLLM) -> None:
    results: dict[str, RequestOutput] = {}

    def worker(prompt: str) -> None:
        async def main() -> None:
            for output in await asyncio.gather(*[last(llm.generate(prompt + c, PARAMS)) for c in "xyz"]):
                assert output.prompt is not None
                results[output.prompt] = output

        run(main)

    threads = [threading.Thread(target=worker, args=(prompt,)) for prompt in PROMPTS]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE_S)
    assert len(results) == 3 * len(PROMPTS)
    for prompt, output in results.items():
        assert output.outputs[0].token_ids == toy_answer(prompt, max_tokens=12)


def test_a_slow_consumer_holds_nobody_up_and_loses_nothing(llm: AsyncLLM) -> None:
    async def main() -> tuple[list[RequestOutput], RequestOutput]:
        slow = llm.generate("slow", ENDLESS)
        outputs = [await anext(slow)]
        fast = await last(llm.generate("fast", ENDLESS))
        await asyncio.to_thread(wait_for_idle, llm)  # all of the slow one's tokens are there, too
        return outputs + [output async for output in slow], fast

    outputs, fast = run(main)
    assert len(outputs) == 2, "what was pending comes as one update"
    assert outputs[-1].outputs[0].token_ids == toy_answer("slow", max_tokens=200, ignore_eos=True)
    assert fast.outputs[0].token_ids == toy_answer("fast", max_tokens=200, ignore_eos=True)


def test_a_loop_is_woken_at_most_once_a_step(llm: AsyncLLM) -> None:
    calls = 0

    async def main() -> None:
        nonlocal calls
        loop = asyncio.get_running_loop()
        wake = loop.call_soon_threadsafe

        def counted(*args: Any, **kwargs: Any) -> asyncio.Handle:
            nonlocal calls
            calls += threading.current_thread().name == "jitney-engine"
            return wake(*args, **kwargs)

        loop.call_soon_threadsafe = counted  # type: ignore[method-assign]
        await asyncio.gather(*[last(llm.generate(f"{n}", ENDLESS)) for n in range(4)])

    run(main)
    assert 1 <= calls <= llm.engine.records.num_steps + 4  # a refusal or an abort may wake, too


# Leaving early


@pytest.mark.parametrize("seed", range(5))
def test_consumers_that_come_and_go_at_random_leave_nothing_behind(llm: AsyncLLM, seed: int) -> None:
    def worker(number: int) -> None:
        random = Random(f"{seed}/{number}")

        async def consume(name: int) -> None:
            stop, n = random.choice([(), "e"]), random.choice([1, 1, 2])
            params = SamplingParams(max_tokens=random.randint(1, 40), n=n, stop=stop, seed=0)
            patience = random.randint(0, 20)
            outputs = llm.generate(f"{name}", params, f"{number}/{name % 20}")
            with suppress(DuplicateRequestError):
                async for output in outputs:
                    patience -= 1
                    if patience < 0:
                        break
                    if random.random() < 0.02:
                        llm.abort(f"{number}/{random.randrange(20)}")
                    if output.finished and output.outputs[0].finish_reason != "abort":
                        options = {"max_tokens": params.max_tokens, "ignore_eos": params.ignore_eos}
                        answer = toy_answer(f"{name}", **options)
                        found = output.outputs[0].token_ids
                        assert found == answer[: len(found)] and (len(found) == len(answer) or params.stop)

        async def main() -> None:
            await asyncio.gather(*[consume(name) for name in range(30)])

        run(main)

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(worker, range(4)))


async def leave_by_break(outputs: AsyncIterator[RequestOutput]) -> None:
    async for _ in outputs:
        break


async def leave_by_closing(outputs: Any) -> None:
    await anext(outputs)
    await outputs.aclose()


async def leave_by_timeout(outputs: AsyncIterator[RequestOutput]) -> None:
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.05):
            async for _ in outputs:
                pass


async def leave_by_cancelling(outputs: AsyncIterator[RequestOutput]) -> None:
    task = asyncio.create_task(last(outputs))
    await asyncio.sleep(0.05)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def leave_by_an_error_of_ones_own(outputs: AsyncIterator[RequestOutput]) -> None:
    with pytest.raises(ZeroDivisionError):
        async for _ in outputs:
            raise ZeroDivisionError


@pytest.mark.parametrize(
    "leave",
    [leave_by_break, leave_by_closing, leave_by_timeout, leave_by_cancelling, leave_by_an_error_of_ones_own],
)
@pytest.mark.parametrize("n", [1, 3])
def test_leaving_early_frees_seats_and_blocks_within_two_steps(
    gated: tuple[AsyncLLM, GatedRunner], leave: Callable[[Any], Awaitable[None]], n: int
) -> None:
    llm, runner = gated
    runner.permits.release(3)

    async def main() -> None:
        await leave(llm.generate("ride", SamplingParams(max_tokens=200, ignore_eos=True, n=n, seed=0)))
        for _ in range(3):
            await asyncio.sleep(0)  # lets the loop close an iterator that was dropped

    run(main)
    runner.permits.release(1000)
    wait_for_idle(llm)
    check_idle(llm.engine)
    assert llm.engine.records.num_steps <= 3 + 2


def test_a_loop_that_was_closed_under_its_iterators_does_not_keep_a_seat(gated: tuple[AsyncLLM, GatedRunner]) -> None:
    llm, runner = gated
    loop = asyncio.new_event_loop()
    outputs = llm.generate("ride", ENDLESS)
    runner.permits.release(1)
    loop.run_until_complete(anext(outputs))
    runner.permits.release(1)
    wait_for(lambda: llm.engine.records.num_steps == 2)  # its wake-up call is due on the loop, and will never run
    loop.close()
    runner.permits.release(1000)
    wait_for_idle(llm)
    check_idle(llm.engine)
    assert llm.engine.records.num_steps < 10


def test_abort_ends_the_iterator_with_a_last_output(gated: tuple[AsyncLLM, GatedRunner]) -> None:
    llm, runner = gated
    runner.permits.release(2)

    async def main() -> RequestOutput:
        outputs = llm.generate("ride", ENDLESS, "mine")
        await anext(outputs)
        assert await asyncio.to_thread(llm.abort, "mine")
        runner.permits.release(1000)
        return await last(outputs)

    output = run(main)
    assert output.outputs[0].finish_reason == "abort"
    assert 1 <= len(output.outputs[0].token_ids) < 200
    assert not llm.abort("mine"), "it is gone"


# Faults


def test_an_abort_from_another_thread_never_overtakes_its_request(llm: AsyncLLM) -> None:
    submit = llm._thread.submit

    def submit_late(requests: Any) -> None:
        aborting = threading.Thread(target=llm.abort, args=("ride",))
        aborting.start()
        aborting.join(0.1)  # all the time it needs, if nothing makes it wait
        submit(requests)

    llm._thread.submit = submit_late  # type: ignore[method-assign]
    output = run(lambda: last(llm.generate("Good", request_id="ride")))
    assert output.finished and llm.is_alive


def test_a_request_error_is_raised_by_the_iterator_alone(llm: AsyncLLM) -> None:
    async def main() -> list[Any]:
        bad = [llm.generate(prompt, PARAMS) for prompt in ("", {"prompt_token_ids": [99]}, "x" * 300)]
        good = llm.generate("ride", PARAMS)
        return await asyncio.gather(*[last(outputs) for outputs in [*bad, good]], return_exceptions=True)

    *bad, good = run(main)
    assert all(isinstance(error, RequestError) for error in bad)
    assert good.outputs[0].token_ids == toy_answer("ride", max_tokens=12)


def test_a_duplicate_id_is_refused_and_the_first_goes_on(llm: AsyncLLM) -> None:
    async def main() -> RequestOutput:
        first = llm.generate("ride", ENDLESS, "same")
        await anext(first)
        with pytest.raises(DuplicateRequestError, match="same"):
            await anext(llm.generate("on", PARAMS, "same"))
        output = await last(first)
        await last(llm.generate("ride", PARAMS, "same"))  # free again
        return output

    assert run(main).outputs[0].token_ids == toy_answer("ride", max_tokens=200, ignore_eos=True)


def test_an_id_that_collides_inside_the_engine_is_refused(llm: AsyncLLM) -> None:
    async def main() -> None:
        first = llm.generate("ride", SamplingParams(max_tokens=100, ignore_eos=True, n=2, seed=0), "a")
        await anext(first)
        with pytest.raises(DuplicateRequestError):
            await anext(llm.generate("on", PARAMS, "a#1"))
        await last(first)

    run(main)


def test_a_failing_step_fails_only_its_requests(llm: AsyncLLM) -> None:
    llm.engine.runner.failing_steps = {6}  # type: ignore[attr-defined]
    params = SamplingParams(max_tokens=3, seed=0, ignore_eos=True)

    async def main() -> list[Any]:
        return await asyncio.gather(*[last(llm.generate(p, params)) for p in PROMPTS], return_exceptions=True)

    results = run(main)
    failed = [result for result in results if isinstance(result, StepFailedError)]
    assert 1 <= len(failed) <= llm.config.max_num_seqs
    for prompt, result in zip(PROMPTS, results, strict=True):
        if not isinstance(result, StepFailedError):
            assert result.outputs[0].token_ids == toy_answer(prompt, max_tokens=3, ignore_eos=True)
