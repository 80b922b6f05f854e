"""Steps of a native decoder on the CPU: numpy in and out, one call into C++ for the forward pass and one for sampling.

Python on the device thread takes the interpreter's lock from the host just when that plans the next step, so there is
next to none of it unless a row has rules, penalties or logprobs. What is kept between steps is that of
model_runner.py, in numpy; torch is not imported.
"""

from dataclasses import dataclass

import numpy as np

from jitney.errors import EngineDeadError
from jitney.models.decoder.native import NativeDecoder, NativeStep
from jitney.runner.host_logprobs import host_logprobs
from jitney.runner.host_sections import HostSections
from jitney.runner.native_sampling import NativeSampling
from jitney.runner.native_swap import NativeSwap
from jitney.types import Bool, Float32, Int32, Int64, LogprobRows, StepInputs, StepOutput


@dataclass(frozen=True, slots=True)
class _PromptPositions:
    """The positions of one prefill row that predict tokens of its prompt."""

    row: int
    num_top: int
    first_token: int
    """Index into the step's tokens."""
    targets: Int32
    """The prompt tokens they predict."""


class NativeRunner:
    """Runs the steps of one native decoder, one at a time, from one thread. Implements StepRunner (device/base.py).

    Args: those of ModelRunner.
    """

    def __init__(
        self,
        model: NativeDecoder,
        num_kv_blocks: int,
        block_size: int,
        num_slots: int,
        max_model_len: int,
        num_host_kv_blocks: int = 0,
    ) -> None:
        self._model = model
        self._cache = model.allocate_kv_cache(num_kv_blocks + 1, block_size)
        self._swap = NativeSwap(self._cache, num_host_kv_blocks)
        self._tables = np.zeros((num_slots, -(-max_model_len // block_size)), np.int32)
        self._sampling = NativeSampling(num_slots, model.spec.vocab_size)
        self._last_tokens = np.zeros(num_slots, np.int32)

    def run(self, inputs: StepInputs) -> StepOutput:
        """Run one step. Raises what the model raises; the slots' state is then that of a step half done."""
        host = HostSections.cut(inputs)
        self._update_blocks(host)
        self._sampling.admit(inputs.admissions)
        ends: Int64 = np.cumsum(host.row_lens, dtype=np.int64)
        logits_tokens = ends[host.sample_rows] - 1
        prompts = self._prompt_positions(inputs.prompt_logprob_rows, host, ends)
        if prompts:
            wanted = [p.first_token + np.arange(len(p.targets)) for p in prompts]
            logits_tokens = np.concatenate((logits_tokens, *wanted))
        step = NativeStep(
            num_decode_rows=inputs.num_decode_rows,
            slots=host.row_slots,
            positions=host.row_starts,
            lens=host.row_lens,
            prompt_tokens=host.prompt_tokens,
            last_tokens=self._last_tokens,
            tables=self._tables,
            logits_tokens=logits_tokens.astype(np.int32),
        )
        logits = self._model.forward(step, self._cache)
        num_sampled = len(host.sample_rows)
        output = self._sample(logits[:num_sampled], host)
        output.prompt_logprobs.update(_prompt_logprobs(logits[num_sampled:], prompts))
        return output

    def _update_blocks(self, host: HostSections) -> None:
        try:
            slots, indices, blocks = host.table_updates.T
            self._tables[slots, indices] = blocks  # where two name the same entry, the last one wins
            self._swap.copy_out(host.swap_out)
            self._swap.copy_in(host.swap_in)
        except Exception as error:
            raise EngineDeadError(f"the block tables or swapped blocks could not be updated: {error}") from error

    def _sample(self, logits: Float32, host: HostSections) -> StepOutput:
        """Tokens of the rows that sample, which `last_tokens` and the histories then know. `logits` may be changed."""
        slots = host.row_slots[host.sample_rows]
        positions = (host.row_starts + host.row_lens)[host.sample_rows]
        rare = np.flatnonzero(self._sampling.is_rare[slots])
        if not len(rare):
            return StepOutput(*self._choose(logits, slots, positions))
        states = {int(i): self._sampling.rare[int(slots[i])] for i in rare}
        with_logprobs = [i for i, state in states.items() if state.params.logprobs is not None]
        raw = logits[with_logprobs]  # a copy, before rules change what lies there
        changed = [i for i, state in states.items() if state.changes_logits]
        was_valid = _valid_rows(logits[changed])  # rules may hide what is wrong
        for i in changed:
            states[i].adjust(logits[i], int(positions[i]))
        tokens, is_valid = self._choose(logits, slots, positions)
        is_valid[changed] &= was_valid
        for i in changed:
            states[i].append(int(tokens[i]))
        if not with_logprobs:
            return StepOutput(tokens, is_valid)
        num_top = max(states[i].params.logprobs or 0 for i in with_logprobs)
        logprobs = host_logprobs(raw, tokens[with_logprobs], num_top)
        return StepOutput(tokens, is_valid, logprobs, np.array(with_logprobs, np.int32))

    def _choose(self, logits: Float32, slots: Int32, positions: Int32) -> tuple[Int32, Bool]:
        return self._model.sample(logits, slots, positions, self._sampling.choices, self._last_tokens)

    def _prompt_positions(
        self, prompt_logprob_rows: tuple[tuple[int, int], ...], host: HostSections, ends: Int64
    ) -> list[_PromptPositions]:
        positions = []
        for row, num_top in prompt_logprob_rows:
            start, length = int(host.row_starts[row]), int(host.row_lens[row])
            prompt = self._sampling.rare[int(host.row_slots[row])].prompt
            targets = prompt[start + 1 : start + 1 + length]  # short by one where the row reaches the prompt's end
            positions.append(_PromptPositions(row, num_top, int(ends[row]) - length, targets))
        return positions


def _prompt_logprobs(logits: Float32, positions: list[_PromptPositions]) -> dict[int, LogprobRows]:
    result = {}
    for p in positions:
        own, logits = logits[: len(p.targets)], logits[len(p.targets) :]
        result[p.row] = host_logprobs(own, p.targets, p.num_top)
    return result


def _valid_rows(logits: Float32) -> Bool:
    """[N] False where a row holds NaN or +inf, or nothing but -inf."""
    is_valid: Bool = np.isfinite(logits.max(-1, initial=-np.inf))
    return is_valid
