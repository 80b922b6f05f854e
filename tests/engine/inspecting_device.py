"""A simulated device that checks every step it is given against the scheduler's promises."""

import numpy as np

from jitney.device.simulated import SimulatedDevice, SimulatedTicket
from jitney.engine.loop import Engine
from jitney.scheduler.slots import Phase
from jitney.types import StepInputs


class InspectingDevice(SimulatedDevice):
    """Set `engine` before the first step."""

    engine: Engine

    def submit(self, inputs: StepInputs) -> SimulatedTicket:
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
        check_ownership(self.engine)
        return super().submit(inputs)


def check_ownership(engine: Engine) -> None:
    """Every block in one place; its count is the number of tables it stands in; only offered blocks are shared."""
    seating, slots = engine.scheduler.seating, engine.scheduler.slots
    seating.pool.check()
    holders: dict[int, int] = {}
    for slot in np.flatnonzero(slots.phase != Phase.FREE).tolist():
        for block in slots.block_table[slot, : slots.num_blocks[slot]].tolist():
            holders[block] = holders.get(block, 0) + 1
    for block in range(1, seating.pool.num_blocks + 1):
        assert seating.pool.ref_count(block) == holders.get(block, 0), f"block {block}: wrong reference count"
        if holders.get(block, 0) > 1:
            assert seating.prefix_cache is not None and seating.prefix_cache.holds(block), (
                f"block {block} has two owners"
            )
