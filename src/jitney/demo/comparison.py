"""Runs the same requests through two ways of batching and measures both. Knows no terminal.

Everything but `batching_policy` and `async_scheduling` is the same in both: model, precision, seats, prompts, lengths.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from jitney.demo.prompts import DemoRequest
from jitney.engine.records import device_idle_share, slot_occupancy
from jitney.llm import LLM
from jitney.outputs import RequestOutput
from jitney.sampling_params import SamplingParams
from jitney.text.tokenizer import Tokenizer

NUM_SEATS = 16
WARM_UP = SamplingParams(temperature=0.0, max_tokens=4, ignore_eos=True)


@dataclass(frozen=True, slots=True)
class Way:
    """One way of batching."""

    name: str
    settings: Mapping[str, Any]


STATIC = Way("sync static", {"batching_policy": "static", "async_scheduling": False})
CONTINUOUS = Way("async continuous", {"batching_policy": "continuous", "async_scheduling": True})


@dataclass(frozen=True, slots=True)
class Measurement:
    """What one run took. All requests arrive at once; times are seconds from then."""

    name: str
    num_output_tokens: int
    num_steps: int
    seconds: float
    """Until the last request has ended."""
    tokens_per_s: float
    ttft_p50_s: float
    ttft_p99_s: float
    seat_occupancy: float
    """Share of seats x device time that computed for somebody; a finished row that keeps its seat does not count."""
    device_idle_share: float
    """Share of the run in which the device had nothing to do."""


@dataclass(frozen=True, slots=True)
class DemoRun:
    """A run's measurement and its outputs, in the order of the requests."""

    measurement: Measurement
    outputs: list[RequestOutput]
    answers: list[str]
    """The texts up to the model's own end-of-text, past which the demo makes it go on."""


def run_way(way: Way, model: str | None, requests: Sequence[DemoRequest], timeline: Path) -> DemoRun:
    """Load the model, warm up, run the requests with a progress bar, and write the trace.

    Raises:
        RequestError: a request failed, so the comparison means nothing.
    """
    with LLM(model, max_num_seqs=NUM_SEATS, **way.settings) as llm:
        _generate(llm, [f"Warm up seat {seat}." for seat in range(NUM_SEATS)], [WARM_UP] * NUM_SEATS)
        num_steps = llm.engine.records.num_steps
        outputs = _generate(
            llm,
            [request.prompt for request in requests],
            [request.params for request in requests],
            use_tqdm=True,
            timeline=timeline,
        )
        for output in outputs:
            if output.error is not None:
                raise output.error
        measurement = measure(way.name, outputs, llm.engine.records.since(num_steps), NUM_SEATS)
        return DemoRun(measurement, outputs, [_answer(llm, output) for output in outputs])


def measure(
    name: str,
    outputs: Sequence[RequestOutput],
    records: np.ndarray[tuple[int], np.dtype[np.void]],
    num_seats: int,
) -> Measurement:
    """The numbers of a finished run from its outputs and the records of its steps."""
    start = min(output.metrics.arrival_time for output in outputs)
    seconds = max(output.metrics.finished_time or start for output in outputs) - start
    ttft = [(output.metrics.first_token_time or start) - start for output in outputs]
    num_tokens = sum(len(output.outputs[0].token_ids) for output in outputs)
    return Measurement(
        name=name,
        num_output_tokens=num_tokens,
        num_steps=len(records),
        seconds=seconds,
        tokens_per_s=num_tokens / seconds,
        ttft_p50_s=float(np.percentile(ttft, 50)),
        ttft_p99_s=float(np.percentile(ttft, 99)),
        seat_occupancy=slot_occupancy(records, num_seats),
        device_idle_share=device_idle_share(records),
    )


def num_equal(first: DemoRun, second: DemoRun) -> int:
    """Requests that got the same tokens in both runs."""
    pairs = zip(first.outputs, second.outputs, strict=True)
    return sum(a.outputs[0].token_ids == b.outputs[0].token_ids for a, b in pairs)


def _generate(
    llm: LLM,
    prompts: Sequence[str],
    params: list[SamplingParams],
    *,
    use_tqdm: bool = False,
    timeline: Path | None = None,
) -> list[RequestOutput]:
    """Through the model's chat template if it has one."""
    if _tokenizer(llm).chat_template is None:
        return llm.generate(list(prompts), params, use_tqdm=use_tqdm, timeline=timeline)
    conversations = [[{"role": "user", "content": prompt}] for prompt in prompts]
    return llm.chat(conversations, params, use_tqdm=use_tqdm, timeline=timeline)


def _answer(llm: LLM, output: RequestOutput) -> str:
    tokenizer, token_ids = _tokenizer(llm), output.outputs[0].token_ids
    ends = [index for index, token in enumerate(token_ids) if token in tokenizer.eos_token_ids]
    return tokenizer.decode(token_ids[: ends[0]] if ends else token_ids)


def _tokenizer(llm: LLM) -> Tokenizer:
    tokenizer = llm.get_tokenizer()
    assert tokenizer is not None, "models named by a path bring their tokenizer"
    return tokenizer
