"""What a runner needs of a graph library: record work once, and have the device repeat it at the price of one launch.

A replay reads and writes the very memory that was recorded. So the work takes its inputs from tensors that stay where
they are, leaves its results in such tensors, and takes nothing from the host that may change.
"""

from collections.abc import Callable
from typing import Protocol


class Graph(Protocol):
    """Recorded work."""

    def replay(self) -> None:
        """Queue the work once more, on the current stream."""


class GraphLibrary(Protocol):
    """Records graphs. They share one pool of scratch memory, so no two may run at the same time."""

    def capture(self, work: Callable[[], None]) -> Graph:
        """Run `work` until it is warm, then record it. Raises what stands in the way; the device is usable after."""
