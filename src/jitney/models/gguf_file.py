"""Reads GGUF files: the metadata as plain Python values, the tensors as memory-mapped blocks, dequantised on demand.

Knows the file format and nothing of models or tokenizers; imports no torch. The `gguf` package supplies the format's
constants and the dequantisation; its own reader makes an array object for every string of a vocabulary, which takes
seconds where this one takes a tenth, and does not tell a truncated file from a good one.
"""

import math
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType, GGUFValueType
from numpy.typing import NDArray

from jitney.errors import ModelLoadError

_MAGIC = b"GGUF"
_VERSIONS = (2, 3)
_MAX_DIMS = 4
_SCALARS = {
    GGUFValueType.UINT8: "<u1",
    GGUFValueType.INT8: "<i1",
    GGUFValueType.UINT16: "<u2",
    GGUFValueType.INT16: "<i2",
    GGUFValueType.UINT32: "<u4",
    GGUFValueType.INT32: "<i4",
    GGUFValueType.UINT64: "<u8",
    GGUFValueType.INT64: "<i8",
    GGUFValueType.FLOAT32: "<f4",
    GGUFValueType.FLOAT64: "<f8",
    GGUFValueType.BOOL: "<?",
}


@dataclass(frozen=True, slots=True)
class GGUFTensor:
    """One tensor as stored."""

    name: str
    shape: tuple[int, ...]
    """Rows first, as numpy and torch count (the file counts the other way round)."""
    kind: GGMLQuantizationType
    data: NDArray[np.uint8]
    """[rows, bytes per row], a view of the mapped file."""

    def dequantize(self) -> NDArray[np.float32]:
        """The values, in `shape`. Raises ModelLoadError for a format that the gguf package cannot decode."""
        try:
            values = gguf.quants.dequantize(self._typed(), self.kind)
        except NotImplementedError as error:
            raise ModelLoadError(
                f"Tensor {self.name} is stored as {self.kind.name}, which the installed gguf package cannot decode; "
                "use another quantisation of the model, such as Q8_0 or Q4_K_M, or upgrade gguf."
            ) from error
        return np.asarray(values, np.float32).reshape(self.shape)

    def _typed(self) -> NDArray[Any]:
        plain = {GGMLQuantizationType.F32: np.float32, GGMLQuantizationType.F16: np.float16}
        return self.data.view(plain[self.kind]) if self.kind in plain else self.data


@dataclass(frozen=True, slots=True)
class GGUFFile:
    """An open file. Metadata values are str, int, float, bool, lists of str, or numpy arrays of numbers."""

    path: Path
    metadata: Mapping[str, Any]
    tensors: Mapping[str, GGUFTensor]

    @property
    def architecture(self) -> str:
        return str(self.metadata.get("general.architecture", ""))


def read_gguf(path: str | PathLike[str]) -> GGUFFile:
    """Open a GGUF file. Raises ModelLoadError if it is missing, truncated, or not what this reader understands."""
    path = Path(path)
    try:
        data: NDArray[np.uint8] = np.memmap(path, np.uint8, "r")
    except (OSError, ValueError) as error:
        raise ModelLoadError(f"{path} cannot be read as a GGUF file: {error}") from error
    cursor = _Cursor(path, data.data)
    version, num_tensors, num_fields = _header(cursor)
    if version not in _VERSIONS:
        raise ModelLoadError(
            f"{path} is GGUF version {version}; versions 2 and 3 (little-endian) can be read. Convert it anew."
        )
    metadata = {cursor.string(): cursor.value() for _ in range(num_fields)}
    entries = [_tensor_entry(cursor) for _ in range(num_tensors)]
    if metadata.get("split.count", 0) > 1:
        raise ModelLoadError(f"{path} is one of {metadata['split.count']} parts; merge them (llama-gguf-split --merge)")
    alignment = int(metadata.get("general.alignment", gguf.GGUF_DEFAULT_ALIGNMENT))
    start = -(-cursor.offset // alignment) * alignment
    return GGUFFile(path, metadata, {entry[0]: _tensor(path, data, start, *entry) for entry in entries})


class _Cursor:
    """Reads values one after the other; past the end of the file it raises ModelLoadError."""

    def __init__(self, path: Path, data: memoryview) -> None:
        self._path = path
        self._data = data
        self.offset = 0

    def take(self, size: int) -> memoryview:
        end = self.offset + size
        if size < 0 or end > len(self._data):
            raise ModelLoadError(
                f"{self._path} ends in the middle of its header ({len(self._data)} bytes): it is truncated or corrupt; "
                "fetch it again."
            )
        taken = self._data[self.offset : end]
        self.offset = end
        return taken

    def number(self, code: str) -> int:
        return int(struct.unpack(f"<{code}", self.take(struct.calcsize(f"<{code}")))[0])

    def string(self) -> str:
        return str(self.take(self.number("Q")), "utf-8", "replace")

    def value(self) -> Any:
        kind = self._kind()
        if kind is GGUFValueType.ARRAY:
            return self._array()
        if kind is GGUFValueType.STRING:
            return self.string()
        return self._numbers(kind, 1)[0].item()

    def _array(self) -> list[str] | NDArray[Any]:
        kind, count = self._kind(), self.number("Q")
        if kind is GGUFValueType.ARRAY:
            raise ModelLoadError(f"{self._path} holds nested arrays in its metadata, which cannot be read.")
        if kind is GGUFValueType.STRING:
            return [self.string() for _ in range(count)]
        return self._numbers(kind, count)

    def _numbers(self, kind: GGUFValueType, count: int) -> NDArray[Any]:
        dtype = np.dtype(_SCALARS[kind])
        return np.frombuffer(self.take(dtype.itemsize * count), dtype)

    def _kind(self) -> GGUFValueType:
        number = self.number("I")
        try:
            return GGUFValueType(number)
        except ValueError:
            raise ModelLoadError(
                f"{self._path} has metadata of the unknown type {number}: it is corrupt, or newer than this reader."
            ) from None


def _header(cursor: _Cursor) -> tuple[int, int, int]:
    magic = bytes(cursor.take(4))
    if magic != _MAGIC:
        raise ModelLoadError(f"{cursor._path} is not a GGUF file: it starts with {magic!r} instead of {_MAGIC!r}.")
    return cursor.number("I"), cursor.number("Q"), cursor.number("Q")


def _tensor_entry(cursor: _Cursor) -> tuple[str, tuple[int, ...], int, int]:
    """(name, shape, format number, offset in the data section)."""
    name, num_dims = cursor.string(), cursor.number("I")
    if num_dims > _MAX_DIMS:
        raise ModelLoadError(f"{cursor._path}: tensor {name!r} has {num_dims} dimensions; the file is corrupt.")
    shape = tuple(cursor.number("Q") for _ in range(num_dims))[::-1]
    return name, shape, cursor.number("I"), cursor.number("Q")


def _tensor(
    path: Path, data: NDArray[np.uint8], start: int, name: str, shape: tuple[int, ...], number: int, offset: int
) -> GGUFTensor:
    try:
        kind = GGMLQuantizationType(number)
    except ValueError:
        raise ModelLoadError(
            f"{path}: tensor {name} is stored in format {number}, which the installed gguf package does not know."
        ) from None
    block_values, block_bytes = GGML_QUANT_SIZES[kind]
    row = shape[-1] if shape else 1
    if row == 0 or row % block_values:
        raise ModelLoadError(f"{path}: tensor {name} has rows of {row} values, not whole blocks of {block_values}.")
    row_bytes = row // block_values * block_bytes
    rows = math.prod(shape[:-1])
    begin, end = start + offset, start + offset + rows * row_bytes
    if end > len(data):
        raise ModelLoadError(
            f"{path} is truncated: tensor {name} ends at byte {end}, the file at {len(data)}; fetch it again."
        )
    return GGUFTensor(name, shape, kind, data[begin:end].reshape(rows, row_bytes))
