"""Steps of a native decoder on the CPU with next to no Python: numpy views of the slots' state, two calls into C++.

Python on the device thread would take the interpreter's lock from the host just when it plans the next step. Steps
with rows that sample at random, want logprobs or obey rules go the way of every other model (model_runner.py); both
ways share one state, so requests may change between them from step to step.
"""

import numpy as np

from jitney.errors import EngineDeadError
from jitney.models.decoder.native import NativeDecoder, NativeStep
from jitney.runner.model_runner import ModelRunner
from jitney.runner.step_batch import HostSections
from jitney.types import StepInputs, StepOutput


class NativeRunner(ModelRunner):
    """A ModelRunner with a short way for steps of greedy rows."""

    def __init__(
        self,
        model: NativeDecoder,
        num_kv_blocks: int,
        block_size: int,
        num_slots: int,
        max_model_len: int,
        num_host_kv_blocks: int = 0,
    ) -> None:
        super().__init__(model, num_kv_blocks, block_size, num_slots, max_model_len, num_host_kv_blocks)
        self._decoder = model
        self._table_rows = self._tables.blocks.numpy()
        self._last_tokens = self._last_token.numpy()

    def run(self, inputs: StepInputs) -> StepOutput:
        """Run one step. Raises what the model raises; the slots' state is then that of a step half done."""
        if inputs.num_swap_out or inputs.num_swap_in or inputs.prompt_logprob_rows:
            return super().run(inputs)
        host = HostSections.cut(inputs)
        slots, indices, blocks = host.table_updates.T
        try:
            self._table_rows[slots, indices] = blocks  # where two name the same entry, the last one wins
        except Exception as error:
            raise EngineDeadError(f"the block tables could not be updated: {error}") from error
        self._state.admit(*inputs.admissions)
        sampling_slots = host.row_slots[host.sample_rows]
        if self._state.features[sampling_slots].any():
            return super().run(inputs)  # updates and admissions may be repeated: nothing has been computed since
        return self._run_greedy(inputs, host, sampling_slots)

    def _run_greedy(self, inputs: StepInputs, host: HostSections, sampling_slots: np.ndarray) -> StepOutput:
        starts = np.zeros(inputs.num_rows + 1, np.int32)
        np.cumsum(host.row_lens, out=starts[1:])
        carried = self._last_tokens[host.row_slots[: inputs.num_decode_rows]].astype(np.int32)
        step = NativeStep(
            token_ids=np.concatenate((carried, host.prompt_tokens)),
            starts=starts,
            positions=host.row_starts,
            tables=self._table_rows[host.row_slots],
            logits_tokens=starts[host.sample_rows + 1] - 1,
        )
        token_ids, is_valid = self._decoder.most_likely(step, self._cache)
        self._last_tokens[sampling_slots] = token_ids
        return StepOutput(token_ids, is_valid)
