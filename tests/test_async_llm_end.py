"""How AsyncLLM ends: death, closing, being forgotten, Ctrl-C. Nobody is left waiting, and no thread is left behind."""

import asyncio
import gc
import signal
import subprocess
import sys
import textwrap
from functools import partial
from typing import Any

import pytest

from jitney.async_llm import AsyncLLM
from jitney.errors import EngineDeadError

from .toy_llm import ENDLESS, PARAMS, PATIENCE_S, PROMPTS, GatedRunner, last, run, toy_async_llm


def test_death_raises_in_waiting_iterators_and_in_new_calls(gated: tuple[AsyncLLM, GatedRunner]) -> None:
    llm, runner = gated

    def broken_plan(now: float) -> None:
        raise ZeroDivisionError("a bug of ours")

    async def main() -> list[Any]:
        waiting = [asyncio.create_task(last(llm.generate(prompt, ENDLESS))) for prompt in PROMPTS]
        await asyncio.to_thread(runner.is_waiting.wait, PATIENCE_S)
        llm.engine.scheduler.plan = broken_plan  # type: ignore[method-assign]
        runner.permits.release(1)
        async with asyncio.timeout(1.0):
            results = await asyncio.gather(*waiting, return_exceptions=True)
            with pytest.raises(EngineDeadError, match="a bug of ours"):
                await anext(llm.generate("late", PARAMS))
        return results

    for error in run(main):
        assert isinstance(error, EngineDeadError) and isinstance(error.__cause__, ZeroDivisionError)
    assert not llm.is_alive


def test_closing_raises_in_waiting_iterators_though_a_step_hangs(gated: tuple[AsyncLLM, GatedRunner]) -> None:
    llm, runner = gated

    async def main() -> list[Any]:
        waiting = [asyncio.create_task(last(llm.generate(prompt, ENDLESS))) for prompt in PROMPTS]
        await asyncio.to_thread(runner.is_waiting.wait, PATIENCE_S)
        closing = asyncio.create_task(llm.aclose())
        async with asyncio.timeout(1.0):
            results = await asyncio.gather(*waiting, return_exceptions=True)
            with pytest.raises(EngineDeadError, match="closed"):
                await anext(llm.generate("late", PARAMS))
        assert not closing.done()
        runner.permits.release(1000)
        await closing
        return results

    assert all(isinstance(error, EngineDeadError) for error in run(main))


def test_closing_twice_is_harmless_and_the_context_manager_closes() -> None:
    async def main() -> AsyncLLM:
        async with toy_async_llm() as llm:
            await last(llm.generate("ride", PARAMS))
        llm.close()
        return llm

    llm = run(main)
    assert not llm.is_alive and not llm._thread._thread.is_alive()


def test_a_forgotten_async_llm_ends_its_thread() -> None:
    llm = toy_async_llm()
    thread = llm._thread._thread
    run(partial(last, llm.generate("ride", PARAMS)))
    del llm
    gc.collect()
    thread.join(PATIENCE_S)
    assert not thread.is_alive()


SCRIPT = """
import asyncio, threading
from jitney.config import EngineConfig
from jitney.async_llm import AsyncLLM
from jitney.device.simulated import SimulatedDevice, linear_cost
from jitney.engine.limits import EngineLimits
from jitney.engine.loop import Engine
from jitney.llm import LLM
from jitney.runner.toy import NullRunner
from jitney.sampling_params import SamplingParams

engine = Engine(EngineConfig(), EngineLimits(97, 10**6, 10**5), SimulatedDevice(NullRunner(), linear_cost(0.01)))
params = SamplingParams(ignore_eos=True)
prompt = {"prompt_token_ids": [1, 2, 3]}

def offline():
    timer = threading.Timer(0.2, print, ["ready"], {"flush": True})
    timer.daemon = True
    timer.start()
    LLM.from_engine(engine).generate([prompt] * 64, params, use_tqdm=False)

async def consume(outputs):
    async for _ in outputs:
        print("ready", flush=True)
        await asyncio.sleep(3600)

async def online():
    llm = AsyncLLM.from_engine(engine)
    async with asyncio.TaskGroup() as group:
        for _ in range(64):
            group.create_task(consume(llm.generate(prompt, params)))

try:
    START
except KeyboardInterrupt:
    print("interrupted", [t.name for t in threading.enumerate() if not t.daemon], engine.num_unfinished, flush=True)
    raise
"""


@pytest.mark.parametrize(("start", "left"), [("offline()", 0), ("asyncio.run(online())", None)])
def test_ctrl_c_ends_the_process(start: str, left: int | None) -> None:
    code = textwrap.dedent(SCRIPT).replace("START", start)
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=PATIENCE_S)
    assert "interrupted ['MainThread']" in out, err
    assert left is None or out.rstrip().endswith(f" {left}")
    assert process.returncode == -signal.SIGINT
    assert err.rstrip().endswith("KeyboardInterrupt") and "Fatal" not in err
