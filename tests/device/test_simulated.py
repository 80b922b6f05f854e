import numpy as np
import pytest

from jitney.device.simulated import MeasuredHostClock, SimulatedDevice, VirtualClock, linear_cost
from jitney.errors import EngineDeadError
from jitney.runner.toy import NullRunner
from jitney.types import StepInputs


def inputs(step_id: int, rows: int = 2) -> StepInputs:
    data = np.concatenate([np.arange(rows), np.full(rows, 10), np.ones(rows), np.arange(rows)]).astype(np.int32)
    return StepInputs(step_id, rows, rows, rows, 0, 0, data, (), ())


def test_steps_run_one_after_the_other_and_the_host_overlaps_them() -> None:
    device = SimulatedDevice(NullRunner(), linear_cost(1.0), VirtualClock(host_cost_s=0.25))
    first, second = device.submit(inputs(0)), device.submit(inputs(1))
    assert (first.span(), second.span()) == ((0.25, 1.25), (1.25, 2.25))
    assert device.now() == 0.5 and not first.done()
    first.result()
    assert device.now() == 1.25 and first.done() and not second.done()


def test_cost_counts_tokens_and_context() -> None:
    cost = linear_cost(1.0, per_token_s=0.1, per_context_token_s=0.01)
    assert cost(inputs(0, rows=2)) == pytest.approx(1.0 + 0.2 + 0.22)


def test_a_measured_clock_skips_waits_but_not_work() -> None:
    clock = MeasuredHostClock()
    clock.advance_to(1000.0)
    assert 1000.0 <= clock.now() < 1010.0
    before = clock.now()
    clock.advance_to(5.0)
    assert clock.now() >= before, "time never goes back"


def test_a_step_that_raises_raises_at_its_own_result() -> None:
    class Failing(NullRunner):
        def run(self, step: StepInputs):  # type: ignore[no-untyped-def]
            if step.step_id == 0:
                raise RuntimeError("broken")
            return super().run(step)

    device = SimulatedDevice(Failing(), linear_cost(1.0))
    first, second = device.submit(inputs(0)), device.submit(inputs(1))
    assert len(second.result().token_ids) == 2
    with pytest.raises(RuntimeError, match="broken"):
        first.result()


def test_a_closed_device_takes_no_more_steps() -> None:
    device = SimulatedDevice(NullRunner(), linear_cost(1.0))
    device.close()
    device.close()
    with pytest.raises(EngineDeadError):
        device.submit(inputs(0))
