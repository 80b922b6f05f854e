"""A step's plan packed into one contiguous host array, so that a device copies exactly what is used, in one go.

The engine keeps one buffer per step in flight and fills it again only after that step has been collected.
"""

from collections.abc import Callable

from jitney.types import Int32, StepInputs, StepPlan


class StepBuffer:
    """Host memory for the inputs of one step; grows when a step needs more."""

    def __init__(self, size: int, host_buffer: Callable[[int], Int32]) -> None:
        self._host_buffer = host_buffer
        self._data = host_buffer(size)

    def fill(self, plan: StepPlan) -> StepInputs:
        """Pack the plan. The returned inputs are views of this buffer, valid until the next fill."""
        sections = (
            plan.row_slots,
            plan.row_starts,
            plan.row_lens,
            plan.sample_rows,
            plan.prompt_tokens,
            plan.table_updates.reshape(-1),
            plan.swap_out.reshape(-1),
            plan.swap_in.reshape(-1),
        )
        size = sum(len(section) for section in sections)
        if size > len(self._data):
            self._data = self._host_buffer(2 * size)
        end = 0
        for section in sections:
            start, end = end, end + len(section)
            self._data[start:end] = section
        return StepInputs(
            step_id=plan.step_id,
            num_rows=plan.num_rows,
            num_decode_rows=plan.num_decode_rows,
            num_sample_rows=len(plan.sample_rows),
            num_prompt_tokens=len(plan.prompt_tokens),
            num_table_updates=len(plan.table_updates),
            data=self._data[:size],
            admissions=plan.admissions,
            prompt_logprob_rows=plan.prompt_logprob_rows,
            num_swap_out=len(plan.swap_out),
            num_swap_in=len(plan.swap_in),
        )
