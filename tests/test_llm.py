import gc
import json
import logging
import signal
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from jitney.build import make_config
from jitney.config import EngineConfig
from jitney.errors import ConfigError, EngineDeadError, RequestError, StepFailedError
from jitney.llm import LLM
from jitney.sampling_params import SamplingParams
from jitney.types import StepInputs, StepOutput

from .engine.toy_engine import EOS, FailingRunner, check_idle, toy_engine
from .toy_llm import END, PROMPTS, text_of, toy_answer, toy_llm, toy_tokenizer

PARAMS = SamplingParams(max_tokens=12, seed=0)


@pytest.fixture(params=[True, False], ids=["async", "sync"])
def llm(request: pytest.FixtureRequest) -> Iterator[LLM]:
    with toy_llm(async_scheduling=request.param) as llm:
        yield llm
        check_idle(llm.engine)


def generate(llm: LLM, prompts: Any, params: Any = PARAMS, **options: Any) -> Any:
    return llm.generate(prompts, params, use_tqdm=False, **options)


# What comes out


def test_outputs_come_in_the_order_of_the_prompts(llm: LLM) -> None:
    outputs = generate(llm, PROMPTS)
    assert [output.prompt for output in outputs] == PROMPTS
    assert [output.outputs[0].token_ids for output in outputs] == [toy_answer(p, max_tokens=12) for p in PROMPTS]
    assert all(output.finished and output.error is None for output in outputs)


def test_a_single_prompt_gives_a_list_of_one(llm: LLM) -> None:
    (output,) = generate(llm, "ride")
    assert output.outputs[0].token_ids == toy_answer("ride", max_tokens=12)
    assert output.prompt_token_ids == toy_tokenizer().encode("ride")


def test_strings_dicts_and_token_ids_are_the_same_prompt(llm: LLM) -> None:
    ids = toy_tokenizer().encode("ride")
    outputs = generate(llm, ["ride", {"prompt": "ride"}, {"prompt_token_ids": ids}])
    assert len({text_of(output) for output in outputs}) == 1
    assert [output.prompt for output in outputs] == ["ride", "ride", None]


def test_the_text_is_the_decoded_tokens(llm: LLM) -> None:
    for output in generate(llm, PROMPTS):
        assert text_of(output) == toy_tokenizer().decode(output.outputs[0].token_ids)


def test_two_consecutive_calls_give_the_same(llm: LLM) -> None:
    assert [text_of(o) for o in generate(llm, PROMPTS)] == [text_of(o) for o in generate(llm, PROMPTS)]


def test_n_outputs_of_a_prompt_differ_and_are_numbered(llm: LLM) -> None:
    first, second = generate(llm, ["ride", "on"], SamplingParams(n=3, max_tokens=6, seed=1, ignore_eos=True))
    for output in (first, second):
        assert [each.index for each in output.outputs] == [0, 1, 2]
        assert len({tuple(each.token_ids) for each in output.outputs}) == 3
        assert output.metrics.finished_time is not None


def test_each_prompt_may_have_its_own_parameters(llm: LLM) -> None:
    lengths = [3, 9, 1]
    each = [SamplingParams(max_tokens=n, ignore_eos=True) for n in lengths]
    assert [len(o.outputs[0].token_ids) for o in generate(llm, PROMPTS[:3], each)] == lengths


def test_no_prompts_give_no_outputs(llm: LLM) -> None:
    assert generate(llm, []) == []


def test_priority_decides_who_runs_first() -> None:
    with toy_llm(scheduling_policy="priority", max_num_seqs=1) as llm:
        outputs = generate(llm, ["a", "b", "c"], priority=[2, 0, 1])
        ends = [output.metrics.finished_time for output in outputs]
    assert ends[1] < ends[2] < ends[0]


def test_chat_goes_through_the_template(llm: LLM) -> None:
    conversation = [{"role": "user", "content": "hi"}]
    (output,) = llm.chat(conversation, PARAMS, use_tqdm=False)
    assert output.prompt == "user:hi\n>"
    assert output.outputs[0].token_ids == toy_answer("user:hi\n>", max_tokens=12)
    bare, _ = llm.chat([conversation, conversation], PARAMS, use_tqdm=False, add_generation_prompt=False)
    assert bare.prompt == "user:hi\n"


def test_without_a_tokenizer_token_ids_go_in_and_out() -> None:
    ids = toy_tokenizer().encode("ride")
    with LLM.from_engine(toy_engine()) as llm:
        prompts = [{"prompt_token_ids": ids}, "ride", {"prompt_token_ids": ids}]
        tokens, string, stop = generate(llm, prompts, [PARAMS, PARAMS, SamplingParams(stop="x")])
        check_idle(llm.engine)
    assert tokens.outputs[0].token_ids == toy_answer("ride", max_tokens=12) and text_of(tokens) == ""
    assert "pass tokenizer=" in str(string.error) and "tokenizer" in str(stop.error)


# How an output ends


def test_the_end_of_text_token_ends_an_output_and_is_not_in_its_text(llm: LLM) -> None:
    prompts = [f"{a}{b}" for a in "abcdefg" for b in "xyz"]
    outputs = generate(llm, prompts, SamplingParams(seed=0))
    ended = [output for output in outputs if output.outputs[0].finish_reason == "stop"]
    assert len(ended) > len(prompts) // 2
    assert all(output.outputs[0].token_ids[-1] == EOS for output in ended)
    for output in ended:
        (completion,) = output.outputs
        assert (completion.finish_reason, completion.stop_reason) == ("stop", None)
        assert END not in completion.text and len(completion.text) == len(completion.token_ids) - 1


def test_a_stop_token_is_named_and_is_not_in_the_text(llm: LLM) -> None:
    answer = toy_answer("ride", max_tokens=12, ignore_eos=True)
    (output,) = generate(llm, "ride", SamplingParams(max_tokens=12, seed=0, stop_token_ids=[answer[4]]))
    end = answer.index(answer[4]) + 1
    assert output.outputs[0].token_ids == answer[:end]
    assert (output.outputs[0].finish_reason, output.outputs[0].stop_reason) == ("stop", answer[4])
    assert text_of(output) == toy_tokenizer().decode(answer[: end - 1])


def test_length_ends_an_output(llm: LLM) -> None:
    (output,) = generate(llm, "ride", SamplingParams(max_tokens=3, ignore_eos=True))
    assert (output.outputs[0].finish_reason, output.outputs[0].stop_reason) == ("length", None)


@pytest.mark.parametrize("include", [False, True])
@pytest.mark.parametrize("start", [0, 3, 9])
def test_a_stop_string_ends_the_output_with_the_token_that_completes_it(llm: LLM, start: int, include: bool) -> None:
    answer = toy_answer("ride", max_tokens=12, ignore_eos=True)
    text = toy_tokenizer().decode(answer, skip_special_tokens=False)
    assert len(text) == 12
    stop = text[start : start + 3]
    params = SamplingParams(max_tokens=12, seed=0, ignore_eos=True, stop=[stop], include_stop_str_in_output=include)
    stopped, other = generate(llm, ["ride", "on"], [params, PARAMS])
    (completion,) = stopped.outputs
    assert (completion.finish_reason, completion.stop_reason) == ("stop", stop)
    assert completion.token_ids == answer[: text.index(stop) + 3]
    assert completion.text == text[: text.index(stop)] + (stop if include else "")
    assert other.outputs[0].token_ids == toy_answer("on", max_tokens=12)


def test_a_stop_string_that_never_comes_changes_nothing(llm: LLM) -> None:
    with_stop = SamplingParams(max_tokens=12, seed=0, stop="\n\n\n\n")
    assert [text_of(o) for o in generate(llm, PROMPTS, with_stop)] == [text_of(o) for o in generate(llm, PROMPTS)]


# Faults


@pytest.mark.parametrize(
    ("prompt", "params", "field"),
    [
        ("", PARAMS, "prompt"),
        ({"prompt_token_ids": []}, PARAMS, "prompt"),
        ({"prompt_token_ids": [1, 97]}, PARAMS, "prompt"),
        ({"prompt_token_ids": [1, -1]}, PARAMS, "prompt"),
        ({"prompt_token_ids": [1, "2"]}, PARAMS, "prompt"),
        ({"prompt_token_ids": None}, PARAMS, "prompt"),
        ({"prompt": 5}, PARAMS, "prompt"),
        ({"promt": "typo"}, PARAMS, "prompt"),
        ({}, PARAMS, "prompt"),
        ([1, 2], PARAMS, "prompt"),
        (None, PARAMS, "prompt"),
        (3, PARAMS, "prompt"),
        ("\ud800", PARAMS, "prompt"),
        ("x" * 300, PARAMS, "prompt"),
        ("x" * 250, PARAMS, "max_tokens"),
        ("x", {"temperature": 0}, "sampling_params"),
        ("x", None, "sampling_params"),
        ("x", SamplingParams(stop_token_ids=[97]), "stop_token_ids"),
    ],
)
def test_a_prompt_at_fault_costs_itself_only(
    llm: LLM, caplog: pytest.LogCaptureFixture, prompt: Any, params: Any, field: str
) -> None:
    with caplog.at_level(logging.WARNING):
        before, bad, after = generate(llm, ["ride", prompt, "on"], [PARAMS, params, PARAMS])
    assert isinstance(bad.error, RequestError) and bad.error.field == field
    assert bad.finished and bad.outputs[0].finish_reason == "error"
    assert bad.outputs[0].text == "" and bad.outputs[0].token_ids == []
    assert before.outputs[0].token_ids == toy_answer("ride", max_tokens=12)
    assert after.outputs[0].token_ids == toy_answer("on", max_tokens=12)
    (warning,) = caplog.records
    assert "1 of 3" in warning.message


@pytest.mark.parametrize(
    ("prompts", "options", "match"),
    [
        ([1, 2, 3], {}, "prompt_token_ids"),
        (5, {}, "int"),
        (None, {}, "NoneType"),
        (["a", "b"], {"sampling_params": [PARAMS]}, "1 entries for 2 prompts"),
        (["a", "b"], {"priority": [1, 2, 3]}, "3 entries for 2 prompts"),
    ],
)
def test_a_call_at_fault_raises_before_anything_runs(llm: LLM, prompts: Any, options: Any, match: str) -> None:
    with pytest.raises(RequestError, match=match):
        llm.generate(prompts, use_tqdm=False, **options)
    assert llm.engine.records.num_steps == 0


@pytest.mark.parametrize("messages", [[], "hi", None, {"role": "user"}])
def test_messages_that_are_no_conversation_raise(llm: LLM, messages: Any) -> None:
    with pytest.raises(RequestError, match="messages"):
        llm.chat(messages, PARAMS, use_tqdm=False)


def test_a_conversation_at_fault_costs_itself_only(llm: LLM) -> None:
    good = [{"role": "user", "content": "hi"}]
    first, bad, last = llm.chat([good, [{"role": "user"}], good], PARAMS, use_tqdm=False)
    assert isinstance(bad.error, RequestError) and bad.error.field == "messages"
    assert first.outputs[0].token_ids == last.outputs[0].token_ids == toy_answer("user:hi\n>", max_tokens=12)


def test_a_failing_step_fails_only_its_requests(llm: LLM) -> None:
    runner = llm.engine.runner  # type: ignore[attr-defined]
    runner.failing_steps = {6}
    outputs = generate(llm, PROMPTS, SamplingParams(max_tokens=3, seed=0, ignore_eos=True))
    failed = [output for output in outputs if output.error is not None]
    assert 1 <= len(failed) <= llm.config.max_num_seqs
    for output, prompt in zip(outputs, PROMPTS, strict=True):
        if output.error is None:
            assert output.outputs[0].token_ids == toy_answer(prompt, max_tokens=3, ignore_eos=True)
        else:
            assert isinstance(output.error, StepFailedError) and "caught fire" in str(output.error.__cause__)
            assert output.outputs[0].finish_reason == "error" and text_of(output) == ""


def test_a_dead_engine_raises_with_its_cause() -> None:
    with toy_llm() as llm:
        llm.engine.die(RuntimeError("short circuit"))
        with pytest.raises(EngineDeadError, match="short circuit") as raised:
            generate(llm, "ride")
    assert isinstance(raised.value.__cause__, RuntimeError)


def test_an_engine_that_dies_on_the_way_raises(monkeypatch: pytest.MonkeyPatch) -> None:
    with toy_llm() as llm:
        plan = llm.engine.scheduler.plan

        def broken_plan(now: float) -> Any:
            if llm.engine.records.num_steps == 3:
                raise ZeroDivisionError("a bug")
            return plan(now)

        monkeypatch.setattr(llm.engine.scheduler, "plan", broken_plan)
        with pytest.raises(EngineDeadError) as raised:
            generate(llm, PROMPTS)
    assert isinstance(raised.value.__cause__, ZeroDivisionError)


# Interrupts


class InterruptedRunner(FailingRunner):
    """Ctrl-C arrives while a step runs."""

    interrupt_in = {3}  # noqa: RUF012 - not shared: set once

    def run(self, inputs: StepInputs) -> StepOutput:
        if inputs.step_id in self.interrupt_in:
            signal.raise_signal(signal.SIGINT)
        return super().run(inputs)


@pytest.fixture
def interrupted_llm(llm: LLM) -> LLM:
    config, device = llm.config, llm.engine.device
    device._runner = InterruptedRunner(97, llm.engine.limits.num_kv_blocks, config.block_size, config.num_slots)  # type: ignore[attr-defined]
    return llm


def test_ctrl_c_ends_the_call_and_leaves_the_llm_usable(interrupted_llm: LLM) -> None:
    handler = signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt):
        generate(interrupted_llm, PROMPTS)
    check_idle(interrupted_llm.engine)
    assert signal.getsignal(signal.SIGINT) is handler
    assert [o.outputs[0].token_ids for o in generate(interrupted_llm, PROMPTS)] == [
        toy_answer(p, max_tokens=12) for p in PROMPTS
    ]


def test_the_timeline_is_written_also_when_the_call_is_interrupted(interrupted_llm: LLM, tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        generate(interrupted_llm, PROMPTS, timeline=tmp_path / "trace.json")
    assert json.loads((tmp_path / "trace.json").read_text())["traceEvents"]


# Around a call


def test_the_timeline_shows_the_steps_of_its_call_only(llm: LLM, tmp_path: Path) -> None:
    generate(llm, PROMPTS)
    first = llm.engine.records.num_steps
    generate(llm, "ride", timeline=str(tmp_path / "trace.json"))
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    steps = [event for event in events if event["name"].startswith("step ")]
    assert len(steps) == llm.engine.records.num_steps - first
    assert llm.engine.timeline is None


@pytest.mark.parametrize("path", ["missing/trace.json", ".", "a\0b", "\ud800", 3, "x" * 5000])
def test_a_timeline_that_cannot_be_written_is_refused_before_anything_runs(llm: LLM, tmp_path: Path, path: Any) -> None:
    with pytest.raises(ConfigError, match="timeline"):
        generate(llm, "ride", timeline=tmp_path / path if isinstance(path, str) else path)
    assert llm.engine.records.num_steps == 0


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="this system has no full disk to offer")
def test_a_disk_that_is_full_in_the_end_costs_the_timeline_only(llm: LLM, caplog: pytest.LogCaptureFixture) -> None:
    (output,) = generate(llm, "ride", timeline="/dev/full")
    assert output.outputs[0].token_ids == toy_answer("ride", max_tokens=12)
    assert "timeline='/dev/full' could not be written" in caplog.text


@pytest.mark.parametrize("variables", [{"messages": []}, {"add_generation_prompt": True}, {"self": 1}, {1: 2}, [1]])
def test_template_variables_that_are_no_names_for_it_cost_their_prompt_only(llm: LLM, variables: Any) -> None:
    (output,) = llm.chat([{"role": "user", "content": "hi"}], chat_template_kwargs=variables, use_tqdm=False)
    assert isinstance(output.error, RequestError) and output.error.field == "chat_template_kwargs"


def test_the_progress_bar_counts_requests_and_tokens(llm: LLM, capfd: pytest.CaptureFixture[str]) -> None:
    llm.generate(PROMPTS, SamplingParams(max_tokens=5, ignore_eos=True), use_tqdm=True)
    captured = capfd.readouterr()
    assert "10/10" in captured.err and "50 tokens" in captured.err and "tokens/s" in captured.err
    assert captured.out == ""


def test_without_the_progress_bar_nothing_is_printed(llm: LLM, capfd: pytest.CaptureFixture[str]) -> None:
    generate(llm, PROMPTS)
    assert capfd.readouterr() == ("", "")


def test_calls_from_many_threads_wait_for_each_other(llm: LLM) -> None:
    with ThreadPoolExecutor(8) as pool:
        results = list(pool.map(lambda prompt: generate(llm, prompt)[0], PROMPTS * 3))
    assert [r.outputs[0].token_ids for r in results] == [toy_answer(p, max_tokens=12) for p in PROMPTS * 3]


def test_closing_twice_is_harmless_and_later_calls_raise() -> None:
    llm = toy_llm()
    llm.close()
    llm.close()
    with pytest.raises(EngineDeadError, match="closed"):
        generate(llm, "ride")


def test_a_forgotten_llm_closes_its_engine() -> None:
    engine = toy_engine()
    llm = LLM.from_engine(engine)
    del llm
    gc.collect()
    assert engine.death is not None


# Settings


def test_an_unknown_setting_is_refused_with_the_closest_one() -> None:
    with pytest.raises(ConfigError, match="did you mean max_num_seqs"):
        LLM(max_num_seq=4)
    with pytest.raises(ConfigError, match="there are dtype"):
        LLM(zzz=4)


def test_settings_are_applied_on_top_of_the_config() -> None:
    config = make_config(EngineConfig(max_num_seqs=2, seed=5), {"seed": 6})
    assert (config.max_num_seqs, config.seed) == (2, 6)


def test_importing_the_front_doors_does_not_import_torch() -> None:
    code = "import sys, jitney.llm, jitney.async_llm; sys.exit('torch' in sys.modules or 'transformers' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
