"""Measures what a model's largest step takes on a GPU, by running it.

A runner with next to no KV cache computes the largest step there can be: as many tokens as fit in one, every seat
sampling, with all that sampling can ask for, one row at the end of the longest context, logprobs of as many prompt
tokens as a step may have. All rows lie on the scratch block. The runner is thrown away afterwards. How the memory is
then shared out: memory_budget.py.

Before that, every kernel that serving uses is compiled: a mixed step, that one and a decode step between them launch
all of Triton's (tests/kernels/triton/test_warm_up.py lists them), and compiled code depends on the model and the
settings, never on the batch. What a graph's static inputs need on top is compiled when it is recorded.
"""

from dataclasses import replace

import numpy as np
import torch

from jitney.config import EngineConfig
from jitney.device.choice import made_current
from jitney.device.gpu_memory import MemoryMeter
from jitney.errors import ConfigError
from jitney.models.base import PagedModel
from jitney.runner.kv_sizing import longest_sequence
from jitney.runner.memory_budget import MemoryProfile
from jitney.runner.model_runner import ModelRunner
from jitney.sampling_params import MAX_LOGPROBS, SamplingParams
from jitney.types import Int32, SlotAdmission, StepInputs

_NUM_KV_BLOCKS = 1

COSTLY = SamplingParams(
    temperature=1.0, top_p=0.9, min_p=0.01, repetition_penalty=1.1, logit_bias={0: 0.0}, logprobs=MAX_LOGPROBS
)
"""What takes the most memory to sample: copies of the logits, and counts of tokens for each slot."""


def profile_run(model: PagedModel, config: EngineConfig, meter: MemoryMeter) -> MemoryProfile:
    """Run the largest step and the largest that only decodes; measure what each takes.

    The model and the device's memory are afterwards as they were.

    Raises:
        ConfigError: not even these steps fit in the device's memory, or `config.max_model_len` is beyond the model.
    """
    max_model_len = longest_sequence(model.spec, config)
    meter.start()
    try:
        with made_current(model.device):
            return _profile(model, config, max_model_len, meter)
    except torch.OutOfMemoryError as error:
        total = meter.read().total / 2**30
        raise ConfigError(
            f"the largest step does not fit in the GPU's {total:,.2f} GiB beside the weights, before any KV cache: "
            f"max_num_batched_tokens={config.max_num_batched_tokens}, max_num_seqs={config.max_num_seqs}, "
            f"max_model_len={max_model_len}, dtype={config.dtype}; lower one of them, or free memory that other "
            f"processes hold ({error})"
        ) from error
    finally:
        meter.start()  # what the runner held is given back


def _profile(model: PagedModel, config: EngineConfig, max_model_len: int, meter: MemoryMeter) -> MemoryProfile:
    runner = ModelRunner(model, _NUM_KV_BLOCKS, config.block_size, config.num_slots, max_model_len)
    runner.run(smallest_mixed_step(config, max_model_len))  # loads code; the largest step may be all of decode rows
    meter.start()
    before = meter.read()
    runner.run(largest_step(config, max_model_len))
    after = meter.read()
    meter.start()
    base = meter.read().allocated
    runner.run(largest_decode_step(config, max_model_len))
    cache = (_NUM_KV_BLOCKS + 1) * config.block_size * model.spec.kv_bytes_per_token()
    return MemoryProfile(
        total=after.total,
        weights=before.allocated - cache,
        activations=after.peak_reserved - before.allocated,
        decode_activations=meter.read().peak_reserved - base,
        other=max(0, after.total - after.free - after.reserved),
    )


def largest_step(config: EngineConfig, max_model_len: int) -> StepInputs:
    """Every seat sampling, and as many tokens as the budget allows, in the longest chunks there can be."""
    num_rows = config.max_num_seqs
    longest = min(max_model_len, config.prefill_chunk_size or max_model_len)
    lens = np.ones(num_rows, np.int32)
    room = config.max_num_batched_tokens - num_rows
    for row in reversed(range(num_rows)):
        lens[row] += min(room, longest - 1)
        room -= int(lens[row]) - 1
    return _step(lens, max_model_len, COSTLY, config.prompt_logprob_tokens)


def largest_decode_step(config: EngineConfig, max_model_len: int) -> StepInputs:
    """Every seat decoding."""
    return _step(np.ones(config.max_num_seqs, np.int32), max_model_len, SamplingParams(temperature=0), 0)


def smallest_mixed_step(config: EngineConfig, max_model_len: int) -> StepInputs:
    """One row of two tokens, if a step may have as many, behind the longest context."""
    lens = np.array([min(2, max_model_len, config.max_num_batched_tokens)], np.int32)
    return _step(lens, max_model_len, SamplingParams(temperature=0), 0)


def _step(lens: Int32, max_model_len: int, params: SamplingParams, num_prompt_logprobs: int) -> StepInputs:
    """Rows of `lens` tokens (those of one first: they decode), all of them token 0.

    Attention takes memory for the longest context in the batch, time for each: so one row has it, the others begin.
    `num_prompt_logprobs`: prompt positions whose logprobs are wanted, as far as there are any.
    """
    starts = np.zeros_like(lens)
    starts[-1] = max_model_len - lens[-1]
    num_rows, rows = len(lens), np.arange(len(lens), dtype=np.int32)
    num_decode_rows = int((lens == 1).sum())
    prompt_tokens = np.zeros(int(lens.sum()) - num_decode_rows, np.int32)
    nothing = np.zeros(0, np.int32)
    wanted = np.zeros_like(lens)
    for row in range(num_decode_rows, num_rows):
        wanted[row] = min(lens[row], num_prompt_logprobs - wanted.sum())
    # one token behind the last that is wanted, since each position predicts the next
    prompts = [
        np.zeros(start + count + 1, np.int32) if count else nothing for start, count in zip(starts, wanted, strict=True)
    ]
    own_params = [replace(params, prompt_logprobs=MAX_LOGPROBS if count else None) for count in wanted]
    return StepInputs(
        step_id=0,
        num_rows=num_rows,
        num_decode_rows=num_decode_rows,
        num_sample_rows=num_rows,
        num_prompt_tokens=len(prompt_tokens),
        num_table_updates=0,
        data=np.concatenate((rows, starts, lens, rows, prompt_tokens)),
        admissions=tuple(
            SlotAdmission(slot, own_params[slot], 0, (), prompts[slot], nothing) for slot in range(num_rows)
        ),
        prompt_logprob_rows=tuple((int(row), MAX_LOGPROBS) for row in np.flatnonzero(wanted)),
    )
