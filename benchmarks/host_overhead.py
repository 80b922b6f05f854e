"""Host time of a decode step: what Python costs, on a device that computes nothing.

Jitney: plan, fill, submit and update of the real engine on a null device. Beside it, in the same run, transformers'
continuous batching: its scheduler, input preparation and update on a tiny model whose forward pass is left out, once on
its general path (any batch on a CPU, and on a GPU every batch with a prefill chunk, a long request or a sliding
window) and once on its decode fast path (flash attention on a GPU, decode rows only). No attention mask is built for
either.
"""

import importlib
import os
import time
from typing import Any

import numpy as np

import report
from jitney.config import EngineConfig
from jitney.device.simulated import MeasuredHostClock, SimulatedDevice, linear_cost
from jitney.engine.limits import EngineLimits, make_requests
from jitney.engine.loop import Engine
from jitney.engine.records import host_seconds
from jitney.runner.toy import NullRunner
from jitney.sampling_params import SamplingParams

VOCAB_SIZE = 50_000
SPARE_TOKENS = 512


def jitney_steps(num_running: int, context: int, num_waiting: int, num_steps: int) -> np.ndarray[Any, Any]:
    """[num_steps] seconds of host work for each decode step with all rows running."""
    config = EngineConfig(max_num_seqs=num_running, max_num_batched_tokens=max(16_384, num_running))
    max_len = context + num_steps + SPARE_TOKENS
    limits = EngineLimits(VOCAB_SIZE, max_len, num_running * -(-max_len // config.block_size))
    engine = Engine(config, limits, SimulatedDevice(NullRunner(), linear_cost(0.03), MeasuredHostClock()))
    random = np.random.default_rng(0)
    params = SamplingParams(temperature=0.0, max_tokens=num_steps + SPARE_TOKENS // 2)
    for index in range(num_running + num_waiting):
        # Lengths differ by up to a block, so that every step has its share of rows that need a new block.
        length = context - int(random.integers(0, config.block_size)) if index < num_running else 16
        prompt = random.integers(0, VOCAB_SIZE, length, dtype=np.int32)
        engine.add(*make_requests(str(index), prompt, params, limits, engine_seed=0))
    while engine.records.num_steps == 0 or engine.records.since()[-1]["num_decode_rows"] < num_running:
        engine.step()
    first = engine.records.num_steps
    for _ in range(num_steps):
        engine.step()
    return host_seconds(engine.records.since(first))


def transformers_steps(num_running: int, context: int, num_steps: int, fast_path: bool) -> np.ndarray[Any, Any]:
    """[num_steps] seconds of prepare_next_batch + update_batch, forward pass left out."""
    from transformers import GenerationConfig, LlamaConfig, LlamaForCausalLM
    from transformers.generation.configuration_utils import ContinuousBatchingConfig

    package = "transformers.generation.continuous_batching"
    inputs = importlib.import_module(f"{package}.input_outputs")
    initialization = importlib.import_module(f"{package}.initialization")
    vars(inputs)["attn_mask_is_needed"] = lambda config: False  # as with flash attention
    if fast_path:
        vars(initialization)["ensure_decode_fast_path_is_available"] = lambda *args, **kwargs: None
    config = LlamaConfig(
        vocab_size=128,
        hidden_size=16,
        intermediate_size=16,
        num_hidden_layers=1,
        num_attention_heads=1,
        num_key_value_heads=1,
        max_position_embeddings=2 * context + 4096,
    )
    model = LlamaForCausalLM(config).eval()
    pages = -(-(context + num_steps + SPARE_TOKENS) // 256)
    settings = ContinuousBatchingConfig(
        num_blocks=int(num_running * pages * 1.3) + 8,  # its FIFO scheduler keeps 15 % of the blocks free
        max_batch_tokens=4096,
        max_requests_per_batch=num_running,
        max_blocks_per_request=pages if fast_path else None,
        allow_block_sharing=False,
        auto_switch_to_flash=False,
    )
    generation = GenerationConfig(max_new_tokens=num_steps + SPARE_TOKENS // 2, eos_token_id=-1, do_sample=False)
    manager = model.init_continuous_batching(generation_config=generation, continuous_batching_config=settings)
    random = np.random.default_rng(0)
    for _ in range(num_running):
        manager.add_request(random.integers(0, 128, context).tolist(), max_new_tokens=num_steps + SPARE_TOKENS // 2)
    processor = manager._create_batch_processor()
    times: list[float] = []
    while len(times) < num_steps:
        start = time.perf_counter()
        processor.prepare_next_batch()
        prepared = time.perf_counter()
        buffers = processor.inputs_and_outputs
        buffers.output_ids.zero_()
        rows = len(buffers.requests_in_batch)
        is_decode = rows == num_running and buffers.num_q_tokens == num_running
        assert not is_decode or buffers.use_block_table == fast_path
        update = time.perf_counter()
        processor.update_batch()
        if is_decode:
            times.append(prepared - start + time.perf_counter() - update)
    return np.array(times)


def row(engine: str, running: int, context: int, waiting: int, seconds: np.ndarray[Any, Any]) -> dict[str, Any]:
    p50, p99 = np.percentile(seconds, [50, 99])
    return {
        "engine": engine,
        "running": running,
        "context": context,
        "waiting": waiting,
        "mean ms": round(float(seconds.mean()) * 1e3, 4),
        "p50 ms": round(float(p50) * 1e3, 4),
        "p99 ms": round(float(p99) * 1e3, 4),
    }


def main() -> None:
    parser = report.parser((__doc__ or "").splitlines()[0])
    parser.add_argument("--steps", type=int, default=300, help="decode steps measured for each line")
    parser.add_argument("--no-transformers", action="store_true", help="Jitney only")
    args = parser.parse_args()
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    cases = [(1, 4000, 0), (32, 4000, 0), (256, 4000, 0), (1024, 4000, 0), (32, 200, 0), (32, 4000, 100_000)]
    rows = [row("jitney", *case, jitney_steps(*case, args.steps)) for case in cases]
    ratios = {}
    if not args.no_transformers:
        ours = rows[1]["p50 ms"]
        for name, fast_path in (("general path", False), ("decode fast path", True)):
            peer = row(
                f"transformers, {name}", 32, 4000, 0, transformers_steps(32, 4000, min(args.steps, 60), fast_path)
            )
            again = row("jitney", 32, 4000, 0, jitney_steps(32, 4000, 0, args.steps))  # interleaved: beside each peer
            rows += [peer, again]
            ratios[name] = round(peer["p50 ms"] / max(ours, again["p50 ms"]), 1)
    report.finish("host_overhead", {"steps": args.steps}, rows, args.json, transformers_to_jitney=ratios)
    for name, ratio in ratios.items():
        print(f"transformers' {name} takes {ratio} times as long at 32 x 4,000")


if __name__ == "__main__":
    main()
