import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from jitney.sampling_params import SamplingParams
from jitney.scheduler.waiting_queue import WaitingQueue
from jitney.types import Request, RequestStatus


def request(index: int, priority: int = 0) -> Request:
    result = Request(str(index), np.array([1], dtype=np.int32), SamplingParams(), 1, (), 0, priority=priority)
    result.arrival_index = index
    return result


def drain(queue: WaitingQueue) -> list[int]:
    order = []
    while queue.peek() is not None:
        order.append(queue.pop().arrival_index)
    return order


def end(queue: WaitingQueue, ended: Request) -> None:
    ended.status = RequestStatus.FINISHED
    queue.forget(ended)


def test_a_preempted_request_comes_back_to_its_place() -> None:
    queue = WaitingQueue(by_priority=False)
    requests = [request(index) for index in range(4)]
    for item in (requests[2], requests[3], requests[0]):
        queue.push(item)
    assert drain(queue) == [0, 2, 3]


def test_priorities_count_only_if_asked_for() -> None:
    for by_priority, order in ((True, [2, 0, 1]), (False, [0, 1, 2])):
        queue = WaitingQueue(by_priority)
        for item in (request(0, 1), request(1, 1), request(2, -1)):
            queue.push(item)
        assert drain(queue) == order


@given(st.lists(st.booleans(), max_size=300))
def test_ended_requests_are_never_shown_and_always_discounted(ends: list[bool]) -> None:
    queue = WaitingQueue(by_priority=False)
    requests = [request(index) for index in range(len(ends))]
    for item in requests:
        queue.push(item)
    for item, ended in zip(requests, ends, strict=True):
        if ended:
            end(queue, item)
    alive = [item.arrival_index for item in requests if not item.is_finished]
    assert len(queue) == len(alive)
    assert drain(queue) == alive and len(queue) == 0


def test_a_queue_of_ended_requests_gives_its_memory_back() -> None:
    queue = WaitingQueue(by_priority=False)
    requests = [request(index) for index in range(1000)]
    for item in requests:
        queue.push(item)
    for item in requests[1:]:
        end(queue, item)
    assert len(queue._heap) < 100
