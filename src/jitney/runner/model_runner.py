"""One step on the device: inputs -> ragged batch -> forward -> sampled tokens. Holds all that lives between steps.

    data ──cut──> tables, slots' sampling state ──> ragged batch ──forward──> logits ──sample──> last_token ──> output

Between steps the device keeps the KV cache, the block tables, the slots' sampling state and each slot's last sampled
token, which is the input of its next decode row. Knows no request and no queue, and nothing of how a device transfers
data: `execute` takes tensors and gives tensors, `run` is the whole of it for a device that shares the host's memory.
"""

from dataclasses import dataclass

import numpy as np
import torch

from jitney.errors import EngineDeadError
from jitney.models.base import PagedModel
from jitney.runner.kv_cache import allocate_kv_cache
from jitney.runner.kv_swap import KVSwap
from jitney.runner.logprobs import LogprobTensors, logprobs_of
from jitney.runner.sampler import SampledTokens, SampleRows, sample
from jitney.runner.sampling_state import SamplingState
from jitney.runner.step_batch import BlockTables, DeviceSections, HostSections, build_batch, build_token_ids
from jitney.types import Int32, StepInputs, StepOutput


@dataclass(frozen=True, slots=True)
class StepResult:
    """A step's output, still on the device."""

    sampled: SampledTokens | None
    """None if no row samples."""
    prompt_logprobs: dict[int, LogprobTensors]

    def to_host(self) -> StepOutput:
        """Copy to the host; waits for the device."""
        prompt_logprobs = {row: logprobs.to_host() for row, logprobs in self.prompt_logprobs.items()}
        sampled = self.sampled
        if sampled is None:
            return StepOutput(np.empty(0, np.int32), np.empty(0, np.bool_), prompt_logprobs=prompt_logprobs)
        return StepOutput(
            token_ids=sampled.token_ids.int().cpu().numpy(),
            is_valid=sampled.is_valid.cpu().numpy(),
            logprobs=None if sampled.logprobs is None else sampled.logprobs.to_host(),
            logprob_rows=sampled.logprob_rows,
            prompt_logprobs=prompt_logprobs,
        )


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
        self._model = model
        self._cache = allocate_kv_cache(model.spec, num_kv_blocks + 1, block_size, model.device)
        self._swap = KVSwap(self._cache, num_host_kv_blocks)
        self._tables = BlockTables(num_slots, -(-max_model_len // block_size), block_size, model.device)
        self._state = SamplingState(num_slots, model.spec.vocab_size, model.device)
        self._last_token = torch.zeros(num_slots, dtype=torch.int64, device=model.device)

    def run(self, inputs: StepInputs) -> StepOutput:
        """Run one step. Raises what the model raises; the slots' state is then that of a step half done.

        Raises:
            EngineDeadError: block tables or swapped blocks could not be updated, so no later step can be trusted.
        """
        try:
            data = torch.from_numpy(inputs.data).to(self._model.device)
        except Exception as error:
            raise EngineDeadError(f"a step's inputs did not reach the device: {error}") from error
        return self.execute(data, inputs).to_host()

    @torch.inference_mode()
    def execute(self, data: torch.Tensor, inputs: StepInputs) -> StepResult:
        """Run one step whose `inputs.data` is on the device already, as `data` ([N] int32)."""
        sections, host = DeviceSections.cut(data, inputs), HostSections.cut(inputs)
        try:
            self._tables.apply(sections.table_updates, host.table_updates)
            self._swap.copy_out(sections.swap_out, host.swap_out)
            self._swap.copy_in(sections.swap_in, host.swap_in)
        except Exception as error:
            raise EngineDeadError(f"the block tables or swapped blocks could not be updated: {error}") from error
        for admission in inputs.admissions:
            self._state.admit(admission)
        token_ids = build_token_ids(sections, inputs.num_decode_rows, self._last_token)
        batch = build_batch(sections, host, inputs.num_tokens, self._tables)
        prompt_positions = self._prompt_positions(inputs.prompt_logprob_rows, host)
        logits_index = self._logits_index(sections, batch.query_starts, prompt_positions)
        logits = self._model.forward(token_ids, batch, self._cache, logits_index)
        return StepResult(
            sampled=self._sample(logits[: inputs.num_sample_rows], sections, host),
            prompt_logprobs=self._prompt_logprobs(logits[inputs.num_sample_rows :], prompt_positions),
        )

    def _logits_index(
        self, sections: DeviceSections, query_starts: torch.Tensor, prompt_positions: list[_PromptPositions]
    ) -> torch.Tensor:
        """The last token of each sampling row, then all prompt positions whose logprobs are wanted."""
        last_tokens = query_starts[sections.sample_rows.long() + 1].long() - 1
        if not prompt_positions:
            return last_tokens
        wanted = np.concatenate([p.first_token + np.arange(len(p.targets)) for p in prompt_positions])
        return torch.cat((last_tokens, torch.from_numpy(wanted).to(last_tokens.device)))

    def _sample(self, logits: torch.Tensor, sections: DeviceSections, host: HostSections) -> SampledTokens | None:
        if len(host.sample_rows) == 0:
            return None
        sample_rows = sections.sample_rows.long()
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
            targets = torch.tensor(p.targets, dtype=torch.int64, device=own.device)
            result[p.row] = logprobs_of(own, targets, p.num_top)
        return result
