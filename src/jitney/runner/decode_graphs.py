"""Decode steps as graphs: recorded at start for a few batch sizes, replayed at the price of one launch each.

A step with R rows replays the graph of the next size up. The rows that fill it up are *padding*: they belong to a slot
that no request ever has, whose block table points at scratch block 0, and nobody looks at their logits. One graph of a
size serves all steps: each step's rows are copied into the graph's static inputs first.
Knows sizes and rows; what a decode step computes comes in as a function, how graphs are recorded as a GraphLibrary.
"""

import logging
from collections.abc import Callable
from functools import partial

import torch

from jitney.device.graphs import Graph, GraphLibrary

logger = logging.getLogger(__name__)

DecodeStep = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
"""([R] int64 slots, [R] int64 positions) of rows with one token each -> [R, V] float32 logits of the next one."""


def padded_sizes(max_num_rows: int) -> list[int]:
    """Batch sizes worth a graph, ascending: fine steps where a row more is felt, and `max_num_rows` itself."""
    sizes = [1, 2, 4, *range(8, 65, 8), *range(80, 257, 16), *range(288, max(289, max_num_rows), 32)]
    return [size for size in sizes if size < max_num_rows] + [max_num_rows]


class DecodeGraphs:
    """The graphs of one model's decode steps.

    Args:
        step: one decode step; reads and writes only memory that stays where it is.
        max_num_rows: most rows of a step.
        vocab_size: V, width of the logits.
        padding_slot: slot of the padding rows.
        device: where the rows live.
    """

    def __init__(
        self, step: DecodeStep, max_num_rows: int, vocab_size: int, padding_slot: int, device: torch.device
    ) -> None:
        self._step = step
        self._sizes = padded_sizes(max_num_rows)
        self._padding = torch.zeros((2, max_num_rows), dtype=torch.int64, device=device)
        self._padding[0] = padding_slot
        self._rows = self._padding.clone()
        """Static inputs: slots and positions."""
        self._logits = torch.empty((max_num_rows, vocab_size), dtype=torch.float32, device=device)
        """Static outputs, shared by all sizes."""
        self._graphs: dict[int, Graph] = {}

    def capture(self, library: GraphLibrary) -> None:
        """Record the graphs, the largest first so that the others fit in its memory.

        Sizes that cannot be recorded are left out with a warning: their steps run eagerly.
        """
        failed: dict[int, Exception] = {}
        for size in reversed(self._sizes):
            try:
                self._graphs[size] = library.capture(partial(self._compute, size))
            except Exception as error:
                failed[size] = error
        if failed:
            sizes, reason = ", ".join(map(str, failed)), next(iter(failed.values()))
            logger.warning("no CUDA graph for decode steps of %s rows; they will run eagerly: %s", sizes, reason)

    def _compute(self, size: int) -> None:
        self._logits[:size].copy_(self._step(self._rows[0, :size], self._rows[1, :size]))

    def logits(self, rows: torch.Tensor) -> torch.Tensor | None:
        """Replay the graph that fits.

        Args:
            rows: [2, R] int32, slots and positions.

        Returns:
            [R, V] float32, good until the next call and free to be overwritten; None if there is no such graph.
        """
        num_rows = rows.shape[1]
        size = next((size for size in self._sizes if size >= num_rows), num_rows)
        graph = self._graphs.get(size)
        if graph is None:
            return None
        self._rows[:, :num_rows].copy_(rows)
        if num_rows < size:
            self._rows[:, num_rows:size].copy_(self._padding[:, num_rows:size])
        graph.replay()
        return self._logits[:num_rows]
