import numpy as np

from jitney.config import EngineConfig
from jitney.device.simulated import MeasuredHostClock, SimulatedDevice, linear_cost
from jitney.engine.limits import EngineLimits, make_requests
from jitney.engine.loop import Engine
from jitney.engine.records import host_seconds
from jitney.runner.toy import NullRunner
from jitney.sampling_params import SamplingParams


def run(n, ctx, waiting=0, steps=300):
    cfg = EngineConfig(max_num_seqs=n, max_num_batched_tokens=max(16384, n))
    lim = EngineLimits(50000, ctx + steps + 200, n * ((ctx + steps + 200) // 16 + 2))
    dev = SimulatedDevice(NullRunner(), linear_cost(0.03), MeasuredHostClock())
    e = Engine(cfg, lim, dev)
    rng = np.random.default_rng(0)
    for i in range(n + waiting):
        e.add(
            *make_requests(
                str(i),
                rng.integers(0, 50000, ctx if i < n else 8),
                SamplingParams(max_tokens=steps + 100, temperature=0),
                lim,
                engine_seed=0,
            )
        )
    while e.scheduler._prefilling or e.scheduler.num_running < n:
        e.step()
    for _ in range(20):
        e.step()
    k = e.records.num_steps
    for _ in range(steps):
        e.step()
    h = host_seconds(e.records.since(k)) * 1e3
    r = e.records.since(k)
    print(
        n,
        ctx,
        waiting,
        "median %.3f mean %.3f p99 %.3f ms" % (np.median(h), h.mean(), np.percentile(h, 99)),
        " ".join(
            f"{a}:{np.median(r[b] - r[c]) * 1e6:.0f}us"
            for a, b, c in [
                ("plan", "fill_start", "plan_start"),
                ("fill", "submit_start", "fill_start"),
                ("sub", "submit_end", "submit_start"),
                ("upd", "update_end", "collect_end"),
            ]
        ),
    )


for n in (1, 32, 256, 1024):
    run(n, 4000)
run(32, 100)
run(32, 4000, 100000)
