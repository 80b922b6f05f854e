import asyncio
import json
from collections.abc import Iterator
from typing import Any

import pytest

from jitney.async_llm import AsyncLLM
from jitney.batch.run import BatchCounts, BatchRun
from jitney.errors import EngineDeadError

from ..letter_llm import MAX_MODEL_LEN, VOCAB_SIZE, toy_async_llm, toy_engine, toy_tokenizer


@pytest.fixture
def llm() -> Iterator[AsyncLLM]:
    llm = toy_async_llm()
    yield llm
    llm.close()


def line(custom_id: str, url: str = "/v1/completions", **body: Any) -> bytes:
    body = {"max_tokens": 8} | body if "messages" in body else {"prompt": custom_id, "max_tokens": 8} | body
    return json.dumps({"custom_id": custom_id, "method": "POST", "url": url, "body": body}).encode()


def run(llm: AsyncLLM, lines: list[bytes], window: int = 16) -> tuple[list[dict[str, Any]], BatchCounts]:
    written: list[dict[str, Any]] = []
    batch = BatchRun(llm, written.append, model_name="toy", window=window)
    asyncio.run(batch.run(enumerate(lines, 1)))
    return written, batch.counts


def by_custom_id(written: list[dict[str, Any]]) -> dict[str, Any]:
    return {answer["custom_id"]: answer for answer in written}


def test_every_line_gets_one_answer(llm: AsyncLLM) -> None:
    written, counts = run(llm, [line(f"request {i}", max_tokens=1 + i % 7, ignore_eos=True) for i in range(30)])
    answers = by_custom_id(written)
    assert len(written) == len(answers) == counts.num_lines == 30
    for i in range(30):
        usage = answers[f"request {i}"]["response"]["body"]["usage"]
        assert (usage["prompt_tokens"], usage["completion_tokens"]) == (len(f"request {i}"), 1 + i % 7)
    assert counts.num_output_tokens == sum(1 + i % 7 for i in range(30))
    assert counts.num_prompt_tokens == sum(len(f"request {i}") for i in range(30))


def test_a_chat_goes_through_the_template(llm: AsyncLLM) -> None:
    url, prompt = "/v1/chat/completions", "[user]Hi\n[assistant]"
    messages = [{"role": "user", "content": "Hi"}]
    written, _ = run(llm, [line("chat", url, messages=messages, seed=1), line("raw", prompt=prompt, seed=1)])
    chat, raw = (by_custom_id(written)[name]["response"]["body"]["choices"][0] for name in ("chat", "raw"))
    assert chat["message"]["content"] == raw["text"] != ""


HOSTILE = [
    b"{",
    b'{"custom_id": "no body", "method": "POST", "url": "/v1/completions"}',
    line("empty prompt", prompt=""),
    line("empty ids", prompt=[]),
    line("unknown id", prompt=[VOCAB_SIZE]),
    line("negative id", prompt=[-1]),
    line("huge id", prompt=[2**70]),
    line("prompt too long", prompt="x" * MAX_MODEL_LEN),
    line("max_tokens too many", max_tokens=MAX_MODEL_LEN),
    line("min above max", min_tokens=9),
    line("bias out of vocabulary", logit_bias={str(VOCAB_SIZE): 1}),
    line("priority out of range", priority=2**40),
    line("no messages", "/v1/chat/completions", messages=[]),
    line("bad role", "/v1/chat/completions", messages=[{"role": 1, "content": "x"}]),
    line("bad content", "/v1/chat/completions", messages=[{"role": "user", "content": 5}]),
    line("image", "/v1/chat/completions", messages=[{"role": "user", "content": [{"type": "image_url"}]}]),
    line("message is text", "/v1/chat/completions", messages=["Hi"]),
]


@pytest.mark.parametrize("bad", HOSTILE, ids=range(len(HOSTILE)))
def test_a_bad_line_costs_itself_only(bad: bytes, llm: AsyncLLM) -> None:
    good = [line(f"good {i}", seed=1) for i in range(4)]
    expected = {name: a["response"]["body"]["choices"] for name, a in by_custom_id(run(llm, good)[0]).items()}
    written, counts = run(llm, [good[0], bad, *good[1:]])
    failed = [answer for answer in written if answer["error"] is not None]
    assert (len(written), len(failed), counts.num_failed) == (5, 1, 1)
    assert failed[0]["response"]["status_code"] == 400
    assert failed[0]["error"]["message"].startswith("line 2: ")
    assert failed[0]["error"]["code"]
    others = by_custom_id([answer for answer in written if answer["error"] is None])
    assert {name: answer["response"]["body"]["choices"] for name, answer in others.items()} == expected


def test_the_second_use_of_a_custom_id_is_refused_and_names_the_first(llm: AsyncLLM) -> None:
    written, _ = run(llm, [line("a"), line("b"), line("a")])
    (failed,) = (answer for answer in written if answer["error"] is not None)
    assert (failed["custom_id"], failed["error"]["code"]) == ("a", "duplicate_custom_id")
    assert "line 3: " in failed["error"]["message"] and "line 1" in failed["error"]["message"]
    assert sum(answer["custom_id"] == "a" and answer["error"] is None for answer in written) == 1


def test_lines_are_read_no_further_ahead_than_the_window(llm: AsyncLLM) -> None:
    written: list[dict[str, Any]] = []
    ahead = []

    def lines() -> Iterator[tuple[int, bytes]]:
        for number in range(1, 41):
            ahead.append(number - len(written))
            yield number, line(str(number)) if number % 3 else b"bad"

    asyncio.run(BatchRun(llm, written.append, model_name="toy", window=5).run(lines()))
    assert len(written) == 40
    assert max(ahead) <= 5 + 1


def test_a_step_that_fails_is_a_server_error_of_its_requests() -> None:
    engine, runner = toy_engine()
    runner.failing_step = 0
    llm = AsyncLLM.from_engine(engine, toy_tokenizer())
    written, _ = run(llm, [line("a"), *(line(f"later {i}") for i in range(5))], window=1)
    llm.close()
    answers = by_custom_id(written)
    assert (answers["a"]["response"]["status_code"], answers["a"]["error"]["code"]) == (500, "step_failed")
    assert all(answers[f"later {i}"]["error"] is None for i in range(5))


def test_a_dead_engine_ends_the_run(llm: AsyncLLM) -> None:
    llm.close()
    with pytest.raises(EngineDeadError):
        run(llm, [line(f"{i}") for i in range(5)])


def test_an_answer_that_cannot_be_stored_ends_the_run_and_frees_the_engine(llm: AsyncLLM) -> None:
    def full(answer: dict[str, Any]) -> None:
        raise OSError("the disk is full")

    batch = BatchRun(llm, full, model_name="toy", window=4)
    with pytest.raises(OSError, match="the disk is full"):
        asyncio.run(batch.run(enumerate([b"{"] + [line(str(i)) for i in range(20)], 1)))
    assert batch.counts.num_lines == batch.counts.num_failed == 0  # nothing that is not stored counts
    assert run(llm, [line("next")])[1].num_failed == 0


def test_a_cancelled_run_keeps_what_was_written_and_aborts_the_rest(llm: AsyncLLM) -> None:
    written: list[dict[str, Any]] = []

    async def cancelled() -> None:
        batch = BatchRun(llm, written.append, model_name="toy", window=4)
        task = asyncio.create_task(batch.run(enumerate([line(str(i)) for i in range(400)], 1)))
        while len(written) < 3:
            await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(cancelled())
    assert 3 <= len(written) < 400
    assert run(llm, [line("next")])[1].num_failed == 0
