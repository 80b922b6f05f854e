"""A model folder's safetensors as a source of tensors: whole or in shards, read one tensor at a time.

Files are memory-mapped and a tensor goes to the target device as it is read. Knows nothing of what the tensors mean.
"""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path

import torch
from safetensors import safe_open

from jitney.errors import ModelLoadError

WHOLE, INDEX = "model.safetensors", "model.safetensors.index.json"
_DTYPES = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}


class SafetensorsFolder:
    """The tensors of `model.safetensors`, or of the shards that `model.safetensors.index.json` names.

    Raises ModelLoadError where the files do not hold what the index says, or hold no plain floating-point numbers.
    """

    def __init__(self, folder: Path, device: torch.device) -> None:
        self.origin = str(folder)
        self._device = str(device)
        self._shards = _shards(folder)
        self._shapes: dict[str, tuple[int, ...]] = {}
        self.dtype: torch.dtype | None = None
        """Of the first tensor."""
        for path, names in self._shards.items():
            self._read_header(path, names)

    @staticmethod
    def is_in(folder: Path) -> bool:
        """Whether the folder has its weights under the names that are read here."""
        return (folder / WHOLE).is_file() or (folder / INDEX).is_file()

    def shapes(self) -> Mapping[str, tuple[int, ...]]:
        """See `TensorSource.shapes`."""
        return self._shapes

    def tensors(self) -> Iterator[tuple[str, torch.Tensor]]:
        """See `TensorSource.tensors`; on the folder's device, in the stored dtype."""
        for path in self._shards:
            with safe_open(path, framework="pt", device=self._device) as file:
                for name in file.keys():  # noqa: SIM118 (no mapping)
                    yield name, file.get_tensor(name)

    def _read_header(self, path: Path, expected: set[str] | None) -> None:
        with safe_open(path, framework="pt") as file:
            names = set(file.keys())
            if expected is not None and (missing := sorted(expected - names)):
                raise ModelLoadError(
                    f"{path} lacks {len(missing)} tensors that its index names ({', '.join(missing[:3])}); fetch it "
                    "again."
                )
            for name in sorted(names):
                stored = file.get_slice(name)
                if stored.get_dtype() not in _DTYPES:
                    raise ModelLoadError(
                        f"{path}: {name} is stored as {stored.get_dtype()}; {', '.join(_DTYPES)} are read. Use a "
                        "checkpoint that is not quantised."
                    )
                self.dtype = self.dtype or _DTYPES[stored.get_dtype()]
                self._shapes[name] = tuple(stored.get_shape())


def _shards(folder: Path) -> dict[Path, set[str] | None]:
    """Each file and the tensors it must hold (None: whatever it holds)."""
    if (folder / WHOLE).is_file():
        return {folder / WHOLE: None}
    index = json.loads((folder / INDEX).read_text("utf-8"))
    shards: dict[Path, set[str] | None] = {}
    for name, file_name in sorted(index["weight_map"].items()):
        if Path(file_name).name != file_name:
            raise ModelLoadError(f"{folder / INDEX} names {file_name!r}, which is not in its folder; fetch it again.")
        names = shards.setdefault(folder / file_name, set())
        if names is not None:
            names.add(name)
    return shards
