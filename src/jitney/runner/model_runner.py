"""One step on the device: inputs -> ragged batch -> forward -> sampled tokens. Holds all that lives between steps.

    data ──cut──> tables, slots' sampling state ──> ragged batch ──forward──> logits ──sample──> last_token ──> output

Between steps the device keeps the KV cache, the block tables, the slots' sampling state and each slot's last sampled
token, which is the input of its next decode row. Knows no request and no queue, and nothing of how a device transfers
data: `execute` takes tensors, gives tensors and never waits for the device; `run` is the whole of it for a device that
shares the host's memory.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from jitney.device.graphs import GraphLibrary
from jitney.device.transfer import to_device
from jitney.errors import EngineDeadError
from jitney.models.base import PagedModel
from jitney.runner.decode_graphs import DecodeGraphs
from jitney.runner.host_sections import HostSections
from jitney.runner.kv_cache import allocate_kv_cache
from jitney.runner.kv_swap import KVSwap
from jitney.runner.logprobs import LogprobTensors, logprobs_of
from jitney.runner.sampler import SampledTokens, SampleRows, sample
from jitney.runner.sampling_state import SamplingState
from jitney.runner.step_batch import (
    BlockTables,
    DeviceSections,
    build_batch,
    build_decode_batch,
    build_token_ids,
)
from jitney.types import Int32, StepInputs, StepOutput


@dataclass(frozen=True, slots=True)
class StepResult:
    """A step's output, still on the device. Implements PendingOutput (device/base.py)."""

    sampled: SampledTokens | None
    """None if no row samples."""
    prompt_logprobs: dict[int, LogprobTensors]

    def tensors(self) -> list[torch.Tensor]:
        sampled = self.sampled
        tensors = [] if sampled is None else [sampled.token_ids, sampled.is_valid]
        if sampled is not None and sampled.logprobs is not None:
            tensors += sampled.logprobs.tensors()
        return tensors + [tensor for logprobs in self.prompt_logprobs.values() for tensor in logprobs.tensors()]

    def assemble(self, arrays: Sequence[NDArray[Any]]) -> StepOutput:
        rest, sampled = iter(arrays), self.sampled
        token_ids, is_valid = np.empty(0, np.int32), np.empty(0, np.bool_)
        logprobs = logprob_rows = None
        if sampled is not None:
            token_ids, is_valid, logprob_rows = next(rest).astype(np.int32), next(rest), sampled.logprob_rows
            logprobs = None if sampled.logprobs is None else LogprobTensors.assemble(rest)
        prompt_logprobs = {row: LogprobTensors.assemble(rest) for row in self.prompt_logprobs}
        return StepOutput(token_ids, is_valid, logprobs, logprob_rows, prompt_logprobs)


@dataclass(frozen=True, slots=True)
class _PromptPositions:
    """The positions of one prefill row that predict tokens of its prompt."""

    row: int
    num_top: int
    first_token: int
    """Index into the step's tokens."""
    targets: Int32
    """The prompt tokens they predict."""


class ModelRunner:
    """Runs the steps of one model, one at a time, from one thread.

    Args:
        model: the forward pass.
        num_kv_blocks: usable KV blocks, ids 1 to num_kv_blocks; scratch block 0 comes on top.
        block_size: tokens in a block.
        num_slots: rows of state kept between steps (`EngineConfig.num_slots`).
        max_model_len: longest sequence; sets the width of the block tables.
        num_host_kv_blocks: blocks of host memory for the KV of preempted requests.
    """

    def __init__(
        self,
        model: PagedModel,
        num_kv_blocks: int,
        block_size: int,
        num_slots: int,
        max_model_len: int,
        num_host_kv_blocks: int = 0,
    ) -> None:
        device = model.device
        self._model = model
        self._cache = allocate_kv_cache(model.spec, num_kv_blocks + 1, block_size, device)
        self._swap = KVSwap(self._cache, num_host_kv_blocks)
        self._padding_slot = num_slots
        """One more row than there are slots: its table points at scratch for ever (see decode_graphs.py)."""
        self._tables = BlockTables(num_slots + 1, -(-max_model_len // block_size), block_size, device)
        self._state = SamplingState(num_slots, model.spec.vocab_size, device)
        self._last_token = torch.zeros(num_slots + 1, dtype=torch.int64, device=device)
        self._graphs: DecodeGraphs | None = None

    @torch.inference_mode()
    def capture_decode_graphs(self, library: GraphLibrary, max_num_rows: int) -> None:
        """Record decode steps of up to `max_num_rows` rows; before the first step, and only if the model can do it."""
        self._graphs = DecodeGraphs(
            self._decode_logits, max_num_rows, self._model.spec.vocab_size, self._padding_slot, self._model.device
        )
        self._graphs.capture(library)

    def run(self, inputs: StepInputs) -> StepOutput:
        """Run one step and wait for it. Raises what `execute` raises."""
        try:
            data = to_device(inputs.data, self._model.device)
        except Exception as error:
            raise EngineDeadError(f"a step's inputs did not reach the device: {error}") from error
        result = self.execute(data, inputs)
        return result.assemble([tensor.cpu().numpy() for tensor in result.tensors()])

    @torch.inference_mode()
    def execute(self, data: torch.Tensor, inputs: StepInputs) -> StepResult:
        """Launch one step whose `inputs.data` is on the device already, as `data` ([N] int32).

        Never waits for the device. Raises what the model raises; the slots' state is then that of a step half done.

        Raises:
            EngineDeadError: block tables or swapped blocks could not be updated, so no later step can be trusted.
        """
        sections, host = DeviceSections.cut(data, inputs), HostSections.cut(inputs)
        try:
            self._tables.apply(sections.table_updates, host.table_updates)
            self._swap.copy_out(sections.swap_out, host.swap_out)
            self._swap.copy_in(sections.swap_in, host.swap_in)
        except Exception as error:
            raise EngineDeadError(f"the block tables or swapped blocks could not be updated: {error}") from error
        self._state.admit(*inputs.admissions)
        prompt_positions = self._prompt_positions(inputs.prompt_logprob_rows, host)
        logits = self._replayed_logits(data, inputs)
        if logits is None:
            logits = self._eager_logits(sections, host, inputs, prompt_positions)
        return StepResult(
            sampled=self._sample(logits[: inputs.num_sample_rows], sections, host),
            prompt_logprobs=self._prompt_logprobs(logits[inputs.num_sample_rows :], prompt_positions),
        )

    def _replayed_logits(self, data: torch.Tensor, inputs: StepInputs) -> torch.Tensor | None:
        """[R, V] of a decode-only step, all of whose rows sample, by its graph; None if it has none."""
        num_rows = inputs.num_rows
        if self._graphs is None or inputs.num_prompt_tokens > 0 or num_rows == 0:
            return None
        return self._graphs.logits(data[: 2 * num_rows].view(2, num_rows))

    def _decode_logits(self, row_slots: torch.Tensor, row_starts: torch.Tensor) -> torch.Tensor:
        """One decode step from tensors alone (see DecodeStep in decode_graphs.py)."""
        batch = build_decode_batch(row_slots, row_starts, self._tables)
        every_row = torch.arange(len(row_slots), device=row_slots.device)
        return self._model.forward(self._last_token[row_slots], batch, self._cache, every_row)

    def _eager_logits(
        self,
        sections: DeviceSections,
        host: HostSections,
        inputs: StepInputs,
        prompt_positions: list[_PromptPositions],
    ) -> torch.Tensor:
        """[S + prompt positions, V]"""
        token_ids = build_token_ids(sections, inputs.num_decode_rows, self._last_token)
        batch = build_batch(sections, host, inputs.num_tokens, self._tables)
        logits_index = self._logits_index(sections, batch.query_starts, prompt_positions)
        return self._model.forward(token_ids, batch, self._cache, logits_index)

    def _logits_index(
        self, sections: DeviceSections, query_starts: torch.Tensor, prompt_positions: list[_PromptPositions]
    ) -> torch.Tensor:
        """The last token of each sampling row, then all prompt positions whose logprobs are wanted."""
        last_tokens = query_starts[sections.sample_rows.long() + 1].long() - 1
        if not prompt_positions:
            return last_tokens
        wanted = np.concatenate([p.first_token + np.arange(len(p.targets)) for p in prompt_positions])
        return torch.cat((last_tokens, to_device(wanted, last_tokens.device)))

    def _sample(self, logits: torch.Tensor, sections: DeviceSections, host: HostSections) -> SampledTokens | None:
        if len(host.sample_rows) == 0:
            return None
        # they come in ascending order, so where every row samples there is nothing to pick
        every_row = len(host.sample_rows) == len(host.row_slots)
        sample_rows = slice(None) if every_row else sections.sample_rows.long()
        rows = SampleRows(
            slots=sections.row_slots[sample_rows].long(),
            positions=(sections.row_starts + sections.row_lens)[sample_rows].long(),
            host_slots=host.row_slots[host.sample_rows],
            host_positions=(host.row_starts + host.row_lens)[host.sample_rows],
        )
        sampled = sample(logits, rows, self._state)
        self._last_token[rows.slots] = sampled.token_ids
        return sampled

    def _prompt_positions(
        self, prompt_logprob_rows: tuple[tuple[int, int], ...], host: HostSections
    ) -> list[_PromptPositions]:
        positions = []
        for row, num_top in prompt_logprob_rows:
            start, length = int(host.row_starts[row]), int(host.row_lens[row])
            prompt = self._state.prompt(int(host.row_slots[row]))
            targets = prompt[start + 1 : start + 1 + length]  # short by one where the row reaches the prompt's end
            positions.append(_PromptPositions(row, num_top, int(host.row_lens[:row].sum()), targets))
        return positions

    def _prompt_logprobs(self, logits: torch.Tensor, positions: list[_PromptPositions]) -> dict[int, LogprobTensors]:
        result = {}
        for p in positions:
            own, logits = logits[: len(p.targets)], logits[len(p.targets) :]
            targets = to_device(p.targets.astype(np.int64), own.device)
            result[p.row] = logprobs_of(own, targets, p.num_top)
        return result
