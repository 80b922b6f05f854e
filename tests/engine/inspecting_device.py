"""A simulated device that checks every step it is given against the scheduler's promises."""

from collections import Counter, defaultdict

import numpy as np

from jitney.device.simulated import SimulatedDevice, SimulatedTicket
from jitney.engine.loop import Engine
from jitney.errors import EngineDeadError
from jitney.scheduler.slots import Phase
from jitney.types import StepInputs


class InspectingDevice(SimulatedDevice):
    """Set `engine` before the first step. Refuses the steps named in `refused_steps`."""

    engine: Engine
    refused_steps: frozenset[int] | set[int] = frozenset()

    def submit(self, inputs: StepInputs) -> SimulatedTicket:
        try:
            self._check(inputs)
        except AssertionError as error:  # any other error would pass for a failed step
            raise EngineDeadError(f"step {inputs.step_id}: {error}") from error
        if inputs.step_id in self.refused_steps:
            raise RuntimeError("the device is full")
        return super().submit(inputs)

    def _check(self, inputs: StepInputs) -> None:
        config = self.engine.config
        scheduler = self.engine.scheduler
        assert inputs.num_tokens <= config.max_num_batched_tokens, "more tokens than the budget"
        assert scheduler.num_running <= config.max_num_seqs, "more running requests than seats"
        assert inputs.num_rows <= config.max_num_seqs, "more rows than seats"
        slots, starts, lens = np.split(inputs.data[: 3 * inputs.num_rows], 3)
        assert len(set(slots.tolist())) == len(slots), "a slot has two rows in one step"
        assert (lens >= 1).all()
        for slot, start, length in zip(slots.tolist(), starts.tolist(), lens.tolist(), strict=True):
            first, last = start // config.block_size, (start + length - 1) // config.block_size
            blocks = scheduler.slots.block_table[slot, first : last + 1].tolist()
            if scheduler.slots.phase[slot] != Phase.BURNING:
                assert all(scheduler.seating.pool.ref_count(block) > 0 for block in blocks), "a token without a block"
        self._check_swaps(inputs)
        check_ownership(self.engine)

    def _check_swaps(self, inputs: StepInputs) -> None:
        seating = self.engine.scheduler.seating
        swaps = inputs.data[sum(inputs.section_sizes()[:-2]) :].reshape(-1, 2)
        filled = swaps[: inputs.num_swap_out, 1].tolist()
        restored = swaps[inputs.num_swap_out :, 0].tolist()
        assert len(set(filled)) == len(filled), "two blocks are swapped out to one host block"
        assert len(set(restored)) == len(restored), "two host blocks are swapped in to one block"
        assert all(seating.pool.ref_count(block) > 0 for block in restored), "swapped in to a block that nobody holds"
        seating.swap_space.check()


def check_ownership(engine: Engine) -> None:
    """Every block in one place; its count is the number of tables it stands in; no slot writes into a shared one."""
    seating, slots = engine.scheduler.seating, engine.scheduler.slots
    seating.pool.check()
    num_holders: Counter[int] = Counter()
    holders: dict[int, list[tuple[int, int]]] = defaultdict(list)
    for slot in np.flatnonzero(slots.phase != Phase.FREE).tolist():
        for index, block in enumerate(slots.block_table[slot, : slots.num_blocks[slot]].tolist()):
            num_holders[block] += 1
            if slots.phase[slot] != Phase.LEAVING:
                holders[block].append((slot, index))
    for block in range(1, seating.pool.num_blocks + 1):
        assert seating.pool.ref_count(block) == num_holders[block], f"block {block}: wrong reference count"
        if len(holders[block]) > 1:
            for slot, index in holders[block]:
                is_full = slots.num_computed[slot] >= (index + 1) * seating.block_size
                assert is_full, f"block {block} has two owners, and slot {slot} is still writing into it"
