"""Vectors in one buffer of float32: four bytes per number, without Python objects."""

from __future__ import annotations

import array
import sys
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, overload

WIDTH = 4
"""The size of one vector component in bytes (float32)."""


class Vectors(Sequence["memoryview[float]"]):
    """One vector for each text, in the order of the texts.

    A vector is a ``memoryview`` of float32 numbers into one shared buffer: index it, iterate over
    it, call ``tolist()``. ``numpy.asarray(vectors)`` is a matrix over the same memory; NumPy is
    not needed otherwise.
    """

    __slots__ = ("_data", "_rows", "dimensions")

    def __init__(
        self, data: bytes | bytearray | memoryview[Any] | array.array[float], dimensions: int
    ) -> None:
        """Wrap a buffer that contains all vectors, one after the other, in native byte order."""
        flat = memoryview(data).toreadonly().cast("B")
        if dimensions < 0 or (flat.nbytes % (dimensions * WIDTH) if dimensions else flat.nbytes):
            raise ValueError(f"{flat.nbytes} bytes are not vectors of {dimensions} numbers")
        self.dimensions = dimensions
        self._data = flat.cast("f")
        self._rows = len(self._data) // dimensions if dimensions else 0

    @classmethod
    def of(cls, rows: Iterable[Iterable[float]]) -> Vectors:
        """Return vectors made from rows of Python numbers."""
        packed = [array.array("f", row) for row in rows]
        lengths = {len(row) for row in packed}
        if len(lengths) > 1:
            raise ValueError(
                f"the vectors differ in length: {', '.join(map(str, sorted(lengths)))}"
            )
        return cls(b"".join(packed), lengths.pop() if lengths else 0)

    @property
    def data(self) -> memoryview[float]:
        """The numbers of all vectors, one vector after the other."""
        return self._data

    def tolist(self) -> list[list[float]]:
        """Return the vectors as lists of Python numbers."""
        rows: list[Any] = [row.tolist() for row in self]
        return rows

    def tobytes(self) -> bytes:
        """Return the numbers as little-endian float32."""
        return little_endian(self._data.tobytes())

    def __len__(self) -> int:
        return self._rows

    @overload
    def __getitem__(self, index: int) -> memoryview[float]: ...
    @overload
    def __getitem__(self, index: slice) -> Vectors: ...
    def __getitem__(self, index: int | slice) -> memoryview[float] | Vectors:
        size = self.dimensions
        if not isinstance(index, slice):
            at = range(self._rows)[index] * size
            return self._data[at : at + size]
        start, stop, step = index.indices(self._rows)
        if step == 1:
            return Vectors(self._data[start * size : max(start, stop) * size], size)
        return Vectors(
            b"".join([self._data[at * size : (at + 1) * size] for at in range(start, stop, step)]),
            size,
        )

    def __iter__(self) -> Iterator[memoryview[float]]:
        data = self._data
        size = self.dimensions
        for at in range(0, self._rows * size, size or 1):
            yield data[at : at + size]

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Any:
        """Return a NumPy matrix for ``numpy.asarray``.

        It shares the memory unless another type is requested.
        """
        import numpy  # NumPy is imported already: only NumPy calls this method

        shared: Any = self._data
        matrix = numpy.frombuffer(shared, dtype=numpy.float32).reshape(self._rows, self.dimensions)
        if dtype is None or numpy.dtype(dtype) == numpy.float32:
            return matrix.copy() if copy else matrix
        if copy is False:
            raise ValueError(f"vectors of float32 cannot be shared as {numpy.dtype(dtype)}")
        return matrix.astype(dtype)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Vectors):
            return NotImplemented
        return self.dimensions == other.dimensions and self._data == other._data

    __hash__ = None  # type: ignore[assignment]

    def __reduce__(self) -> tuple[Any, ...]:
        return from_little_endian, (self.tobytes(), self.dimensions)

    def __repr__(self) -> str:
        return f"<Vectors {self._rows} of {self.dimensions} float32>"


def from_little_endian(data: bytes, dimensions: int) -> Vectors:
    """Return vectors made from little-endian float32 bytes, the format of servers and files."""
    return Vectors(little_endian(data), dimensions)


def little_endian(data: bytes) -> bytes:
    """Convert float32 bytes between native and little-endian order, if these differ."""
    if sys.byteorder == "little":
        return data
    swapped = array.array("f", data)  # pragma: no cover - no such machine runs the tests
    swapped.byteswap()  # pragma: no cover
    return swapped.tobytes()  # pragma: no cover


def is_finite(data: bytes) -> bool:
    """Return whether all numbers in little-endian float32 bytes are finite.

    NaN and infinity have all bits of the exponent set, so the highest byte is 0x7f or 0xff.
    Searching for these bytes is ten times faster than looking at each number; a finite number has
    such a byte only from 1.7e38 on.
    """
    highest = data[3::WIDTH]
    if b"\x7f" not in highest and b"\xff" not in highest:
        return True
    return all(
        (data[at + 3] & 0x7F) != 0x7F or data[at + 2] < 0x80 for at in range(0, len(data), WIDTH)
    )
