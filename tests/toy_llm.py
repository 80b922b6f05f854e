"""Front doors over the toy engine, with a tokenizer of one character a token, and what waits for them in tests."""

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import tokenizers
from tokenizers import AddedToken, decoders, models, pre_tokenizers

from jitney.async_llm import AsyncLLM
from jitney.device.simulated import SimulatedDevice
from jitney.llm import LLM
from jitney.outputs import RequestOutput
from jitney.sampling_params import SamplingParams
from jitney.text.chat_template import ChatTemplate
from jitney.text.tokenizer import Tokenizer
from jitney.types import StepInputs, StepOutput

from .engine.toy_engine import EOS, VOCAB_SIZE, FailingRunner, ToyEngine, expected_tokens, toy_engine, toy_request

END = "<|end|>"
PATIENCE_S = 30.0
"""Only a hang takes this long."""
PARAMS = SamplingParams(max_tokens=12, seed=0)
ENDLESS = SamplingParams(max_tokens=200, seed=0, ignore_eos=True)
PROMPTS = ["Good", "a", "continuous", "batch", "stops,", "some", "ride", "on", "all", "day"]


def toy_tokenizer() -> Tokenizer:
    """97 tokens: printable ASCII, space and newline as characters of their own, and END as the model's end."""
    pieces = [chr(code) for code in range(0x21, 0x7F)] + ["Ġ", "Ċ"]
    pieces.insert(EOS, END)
    assert len(pieces) == VOCAB_SIZE
    backend = tokenizers.Tokenizer(models.BPE({piece: index for index, piece in enumerate(pieces)}, []))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens([AddedToken(END, special=True)])
    template = ChatTemplate(
        "{% for m in messages %}{{ m.role }}:{{ m.content }}\n{% endfor %}{% if add_generation_prompt %}>{% endif %}"
    )
    return Tokenizer(backend, eos_token_ids=[EOS], chat_template=template)


class GatedRunner(FailingRunner):
    """Each step waits for a permit: a device that is exactly as slow as the test wants."""

    def __init__(self, *args: int) -> None:
        super().__init__(*args)
        self.permits = threading.Semaphore(0)
        self.is_waiting = threading.Event()

    def run(self, inputs: StepInputs) -> StepOutput:
        self.is_waiting.set()
        self.permits.acquire()
        return super().run(inputs)


def gated_engine(**settings: Any) -> tuple[ToyEngine, GatedRunner]:
    engine = toy_engine(**settings)
    config = engine.config
    runner = GatedRunner(VOCAB_SIZE, engine.limits.num_kv_blocks, config.block_size, config.num_slots)
    assert isinstance(engine.device, SimulatedDevice)
    engine.device._runner = engine.runner = runner
    return engine, runner


def toy_llm(**settings: Any) -> LLM:
    return LLM.from_engine(toy_engine(**settings), toy_tokenizer())


def toy_async_llm(**settings: Any) -> AsyncLLM:
    return AsyncLLM.from_engine(toy_engine(**settings), toy_tokenizer())


def toy_answer(prompt: str, **params: Any) -> list[int]:
    """The tokens that the toy model gives, computed without an engine."""
    engine = toy_engine()
    ids = toy_tokenizer().encode(prompt)
    return expected_tokens(toy_request(engine.limits, "expected", ids, **params))


def text_of(output: RequestOutput) -> str:
    return output.outputs[0].text


def run(main: Callable[[], Awaitable[Any]]) -> Any:
    async def limited() -> Any:
        async with asyncio.timeout(PATIENCE_S):
            return await main()

    return asyncio.run(limited())


async def last(outputs: AsyncIterator[RequestOutput]) -> RequestOutput:
    async for output in outputs:
        final = output
    assert final.finished
    return final


def wait_for(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.001)
