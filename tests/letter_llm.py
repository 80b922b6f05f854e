"""A whole AsyncLLM without a model: letters from the toy runner, a byte-level tokenizer, a simulated device."""

from dataclasses import replace
from typing import Any

import numpy as np
import tokenizers
from tokenizers import AddedToken, decoders, models, pre_tokenizers

from jitney.async_llm import AsyncLLM
from jitney.config import EngineConfig
from jitney.device.simulated import SimulatedDevice, linear_cost
from jitney.engine.limits import resolve_limits
from jitney.engine.loop import Engine
from jitney.llm import LLM
from jitney.runner.toy import ToyRunner
from jitney.text.chat_template import ChatTemplate
from jitney.text.detokenizer import byte_alphabet
from jitney.text.tokenizer import Tokenizer
from jitney.types import StepInputs, StepOutput

EOS = 256
VOCAB_SIZE = 257
MAX_MODEL_LEN = 512
BLOCK_SIZE = 4
TEMPLATE = "{% for m in messages %}[{{ m.role }}]{{ m.content }}\n{% endfor %}[assistant]"


class LetterRunner:
    """Small letters that depend on the whole context, and an end-of-text token every sixteenth time."""

    failing_step: int | None = None

    def __init__(self, toy: ToyRunner) -> None:
        self._toy = toy
        self._letters = np.array([EOS if token % 16 == 0 else ord("a") + token % 26 for token in range(VOCAB_SIZE)])

    def run(self, inputs: StepInputs) -> StepOutput:
        output = self._toy.run(inputs)
        if inputs.step_id == self.failing_step:
            raise RuntimeError("the device caught fire")
        return replace(output, token_ids=self._letters[output.token_ids].astype(np.int32))


def toy_tokenizer(chat_template: str | None = TEMPLATE) -> Tokenizer:
    vocabulary = {piece: byte for byte, piece in byte_alphabet().items()}
    backend = tokenizers.Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens([AddedToken("<|end|>", special=True)])
    template = ChatTemplate(chat_template) if chat_template is not None else None
    return Tokenizer(backend, eos_token_ids=[EOS], chat_template=template)


def toy_engine(config: EngineConfig | None = None, **settings: Any) -> tuple[Engine, LetterRunner]:
    config = config or EngineConfig(**{"max_num_seqs": 4, "max_num_batched_tokens": 64} | settings)
    config = replace(config, block_size=BLOCK_SIZE)
    num_kv_blocks = 4 * MAX_MODEL_LEN // BLOCK_SIZE
    limits = resolve_limits(
        config,
        vocab_size=VOCAB_SIZE,
        max_position_embeddings=MAX_MODEL_LEN,
        num_kv_blocks=num_kv_blocks,
        eos_token_ids=(EOS,),
    )
    runner = LetterRunner(ToyRunner(VOCAB_SIZE, num_kv_blocks, BLOCK_SIZE, config.num_slots))
    return Engine(config, limits, SimulatedDevice(runner, linear_cost(0.01, 0.0001))), runner


def toy_async_llm(config: EngineConfig | None = None, **settings: Any) -> AsyncLLM:
    return AsyncLLM.from_engine(toy_engine(config, **settings)[0], toy_tokenizer())


def toy_llm(config: EngineConfig | None = None, **settings: Any) -> LLM:
    return LLM.from_engine(toy_engine(config, **settings)[0], toy_tokenizer())
