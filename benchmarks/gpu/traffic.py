"""Mixed traffic on the timed model: requests of log-normal lengths, all five ways to batch them, same engine.

Each way has its share of the time. One that needs more (sequential will) is stopped there: its row then speaks of the
requests that it could send and of the tokens that it gave, and says so under `ended`.
"""

from typing import Any

import policies
from gpu.running import Part
from gpu.served import Bench
from jitney.types import FinishReason

ORDER = ("async continuous", "continuous", "static", "dynamic", "sequential")
"""The most telling first, should the time run out."""


def measure(bench: Bench, part: Part) -> None:
    scale = bench.scale
    runs = [(count, way) for count in scale.traffic_counts for way in ORDER]
    found: dict[int, dict[str, dict[str, Any]]] = {count: {} for count in scale.traffic_counts}
    for index, (count, way) in enumerate(runs):
        if part.left_s <= 0:
            part.note(f"no time for {', '.join(f'{way} ({count})' for count, way in runs[index:])}")
            break
        row = _play(bench, count, way, part.left_s / (len(runs) - index))
        if row is None:
            part.note(f"{way} ({count}): no token within its share of the time")
            continue
        found[count][way] = row
        part.add(**row)
    for rows in found.values():
        static = rows.get("static")
        for row in rows.values():
            ratio = None if static is None else round(row["tokens/s"] / static["tokens/s"], 2)
            kept = ("requests", "way", "ended", "tokens/s", "TTFT p50 s", "TTFT p99 s", "seats used %")
            part.total(**{name: row[name] for name in kept}, **{"x static": ratio})


def _play(bench: Bench, count: int, way: str, at_most_s: float) -> dict[str, Any] | None:
    scale = bench.scale
    served = bench.served
    engine = served.engine(enable_prefix_caching=False, **policies.WAYS[way])
    lengths = (scale.prompt_lengths, scale.output_lengths)
    shapes = policies.traffic(count, scale.traffic_rate, engine.limits.vocab_size, count, *lengths)
    requests = policies.play(engine, shapes, f"{count} {way}", at_most_s)
    if all(request.metrics.first_token_time is None for request in requests):
        return None
    ended = sum(request.finish_reason is FinishReason.LENGTH for request in requests)
    figures = {column: round(value, 3) for column, value in policies.figures(engine, 0, requests).items()}
    return {"requests": count, "way": way, "ended": f"{ended} of {count}", **figures}
