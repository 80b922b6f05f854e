"""Requests without a seat, in order of admission. Every operation is O(log n) whatever the length."""

import heapq

from jitney.types import Request, RequestStatus


class WaitingQueue:
    """Ordered by arrival, or by (priority, arrival). A preempted request keeps its place.

    Ended requests are dropped when they come to the front, or all at once when they outnumber the living.
    """

    def __init__(self, by_priority: bool) -> None:
        self._by_priority = by_priority
        self._heap: list[tuple[int, int, Request]] = []
        self._num_alive = 0

    def __len__(self) -> int:
        return self._num_alive

    def push(self, request: Request) -> None:
        priority = request.priority if self._by_priority else 0
        heapq.heappush(self._heap, (priority, request.arrival_index, request))
        self._num_alive += 1

    def peek(self) -> Request | None:
        """The next to be admitted, or None."""
        heap = self._heap
        while heap and heap[0][2].status is not RequestStatus.WAITING:
            heapq.heappop(heap)
        return heap[0][2] if heap else None

    def pop(self) -> Request:
        """Take the request that `peek` showed."""
        self._num_alive -= 1
        return heapq.heappop(self._heap)[2]

    def forget(self, request: Request) -> None:
        """A waiting request has ended (its status says so already)."""
        self._num_alive -= 1
        if len(self._heap) > 64 and self._num_alive < len(self._heap) // 2:
            self._heap = [item for item in self._heap if item[2].status is RequestStatus.WAITING]
            heapq.heapify(self._heap)
