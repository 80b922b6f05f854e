"""The graph library of a real GPU: torch.cuda's graphs behind device/graphs.py."""

from collections.abc import Callable

import torch

_WARM_UP_RUNS = 2
"""Before recording: kernels are compiled and tuned, and libraries take their workspaces, in the first runs."""


class CudaGraphs:
    """Implements GraphLibrary. All graphs share one memory pool: capture the largest first, the others fit in."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream = torch.cuda.Stream(device)
        self._pool = torch.cuda.graph_pool_handle()

    def capture(self, work: Callable[[], None]) -> torch.cuda.CUDAGraph:
        # torch.cuda.graph leaves its stream the current one when the recording fails, so this puts back the caller's
        with torch.cuda.stream(torch.cuda.current_stream(self._device)):
            return self._capture(work)

    def _capture(self, work: Callable[[], None]) -> torch.cuda.CUDAGraph:
        torch.cuda.synchronize(self._device)
        with torch.cuda.stream(self._stream):
            for _ in range(_WARM_UP_RUNS):
                work()
        self._stream.synchronize()
        graph = torch.cuda.CUDAGraph()
        # thread_local: what other threads ask of the device meanwhile is no fault of the recorded work
        with torch.cuda.graph(graph, pool=self._pool, stream=self._stream, capture_error_mode="thread_local"):
            work()
        return graph
