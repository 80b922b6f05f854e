"""A step's inputs on the host: the one array cut into its sections. numpy only."""

from dataclasses import dataclass
from itertools import accumulate, pairwise

from jitney.types import Int32, StepInputs


@dataclass(frozen=True, slots=True)
class HostSections:
    """Views of `StepInputs.data` (int32; see StepInputs for the order)."""

    row_slots: Int32
    row_starts: Int32
    row_lens: Int32
    sample_rows: Int32
    prompt_tokens: Int32
    table_updates: Int32
    """[U, 3]"""
    swap_out: Int32
    """[O, 2] (device block, host block)"""
    swap_in: Int32
    """[I, 2] (device block, host block)"""

    @classmethod
    def cut(cls, inputs: StepInputs) -> "HostSections":
        edges = pairwise(accumulate(inputs.section_sizes(), initial=0))
        slots, starts, lens, sample_rows, tokens, updates, *swaps = (inputs.data[start:end] for start, end in edges)
        swap_out, swap_in = (pairs.reshape(-1, 2) for pairs in swaps)
        return cls(slots, starts, lens, sample_rows, tokens, updates.reshape(-1, 3), swap_out, swap_in)
