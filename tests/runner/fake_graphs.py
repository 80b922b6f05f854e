"""A graph library without a GPU. It replays by running the recorded work again, and fails where a real graph would not
do what that run does: another operation, another shape or number, or memory that lies elsewhere than when recorded."""

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten


class NotTheRecordedWorkError(AssertionError):
    pass


class _Trace(TorchDispatchMode):
    """Every operation with its numbers, and where its tensors come from: an address, or an operation before it."""

    def __init__(self) -> None:
        super().__init__()
        self.operations: list[tuple[object, ...]] = []
        self._made: dict[int, str] = {}
        self._kept: list[torch.Tensor] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        inputs = tree_flatten((args, kwargs))[0]
        self.operations.append((str(func), *(self._describe(value) for value in inputs)))
        result = func(*args, **(kwargs or {}))
        known = {_storage(tensor) for tensor in _tensors(inputs)}
        for tensor in _tensors(tree_flatten(result)[0]):
            self._kept.append(tensor)  # no other tensor may get its address
            if _storage(tensor) not in known:
                self._made[_storage(tensor)] = f"from operation {len(self.operations)}"
        return result

    def _describe(self, value: object) -> object:
        if not isinstance(value, torch.Tensor):
            return repr(value)
        place = self._made.get(_storage(value), value.data_ptr())
        return place, value.storage_offset(), tuple(value.shape), value.stride(), value.dtype


def _tensors(values: Iterable[object]) -> list[torch.Tensor]:
    return [value for value in values if isinstance(value, torch.Tensor)]


def _storage(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


def _run(work: Callable[[], None]) -> list[tuple[object, ...]]:
    with _Trace() as trace:
        work()
    return trace.operations


class FakeGraph:
    def __init__(self, work: Callable[[], None]) -> None:
        self._work = work
        self._recorded = _run(work)
        self.num_replays = 0

    def replay(self) -> None:
        self.num_replays += 1
        for recorded, now in zip(self._recorded, _run(self._work), strict=True):
            if recorded != now:
                raise NotTheRecordedWorkError(f"recorded {recorded}, now {now}")


class FakeGraphs:
    """GraphLibrary on the CPU; the captures whose number (0, 1, ...) is in `failing` fail."""

    def __init__(self, failing: Iterable[int] = ()) -> None:
        self.failing = set(failing)
        self.num_captures = 0
        self.graphs: list[FakeGraph] = []

    @property
    def num_replays(self) -> int:
        return sum(graph.num_replays for graph in self.graphs)

    def capture(self, work: Callable[[], None]) -> FakeGraph:
        number = self.num_captures
        self.num_captures += 1
        work()  # warm up
        if number in self.failing:
            raise RuntimeError("operation not permitted when stream is capturing")
        self.graphs.append(FakeGraph(work))
        return self.graphs[-1]
