"""Tensors in memory and fragments in registers, as the author sees them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Union

from tilewright.dtypes import DType, dtype
from tilewright.errors import LayoutError, TraceError
from tilewright.ir.mma import TiledMma
from tilewright.ir.ops import Copy, Elementwise, Partition, Reshape
from tilewright.ir.types import Memory, Value
from tilewright.lang.scalars import Index, Scalar, as_tuple, unwrap, wrap
from tilewright.lang.source import here
from tilewright.lang.tracer import current
from tilewright.layout import transforms as t
from tilewright.layout.distribution import Distribution, Mode, blocked
from tilewright.layout.expr import add, expand, mul
from tilewright.layout.layout import Layout
from tilewright.layout.nodes import Int
from tilewright.layout.transforms import Transform


class Tensor:
    """A tensor in global or shared memory: a buffer and a view of it.  Every method gives a new view."""

    def __init__(self, value: Value) -> None:
        self.value = value
        self.region = current().region_ids[-1]

    @property
    def shape(self) -> tuple[Any, ...]:
        """Extents: integers, or `Scalar` where known only at run time."""
        return tuple(wrap(extent) for extent in self.value.tensor.shape)

    @property
    def dtype(self) -> DType:
        """Element type."""
        return self.value.dtype

    @property
    def memory(self) -> Memory:
        """Where it lies."""
        return self.value.tensor.memory

    def _view(self, transform: Transform, suffix: str) -> Tensor:
        base = self.value.buffer.name
        return Tensor(current().define(Reshape, f"{base}_{suffix}", source=self.value, transform=transform))

    def tile(self, shape: Sequence[int], at: Sequence[Index]) -> Tensor:
        """Tile ``at`` of the partition into tiles of ``shape``: ``new[i] = old[at*shape + i]``.

        What lies past the edge reads as 0 and is not written.
        """
        return self._view(t.Tile(tuple(shape), tuple(unwrap(i) for i in as_tuple(at))), "tile")

    def __getitem__(self, index: Any) -> Tensor:
        parts = list(as_tuple(index))
        if Ellipsis in [part for part in parts if part is Ellipsis]:
            where = next(at for at, part in enumerate(parts) if part is Ellipsis)
            parts[where : where + 1] = [slice(None)] * (len(self.shape) - len(parts) + 1)
        parts += [slice(None)] * (len(self.shape) - len(parts))
        if len(parts) > len(self.shape):
            raise TraceError(f"{len(parts)} indices for a tensor of rank {len(self.shape)}", here())
        at = tuple(_slice_part(part, e) for part, e in zip(parts, self.value.tensor.shape, strict=True))
        return self._view(t.Slice(at), "slice")

    def permute(self, *order: int) -> Tensor:
        """Reorder dimensions: ``new.shape[d] == old.shape[order[d]]``."""
        return self._view(t.Permute(order), "permuted")

    def pad(self, before: Sequence[Index], after: Sequence[Index]) -> Tensor:
        """Grow each dimension by invalid elements before and after."""
        return self._view(t.Pad(_ints(before), _ints(after)), "padded")

    def pad_to(self, multiple: Sequence[int]) -> Tensor:
        """Grow each dimension at its end to a multiple."""
        return self._view(t.PadTo(tuple(multiple)), "padded")

    def unmerge(self, dim: int, lengths: Sequence[Index]) -> Tensor:
        """Split a dimension, the last length fastest."""
        return self._view(t.Unmerge(dim, _ints(lengths)), "unmerged")

    def merge(self, dim: int, count: int = 2) -> Tensor:
        """Join neighbouring dimensions, the last one fastest."""
        return self._view(t.Merge(dim, count), "merged")

    def embed(
        self, dim: int, lengths: Sequence[Index], strides: Sequence[Index], offset: Index = 0
    ) -> Tensor:
        """Sliding window: ``old = sum(new_i * strides_i) - offset``."""
        return self._view(t.Embed(dim, _ints(lengths), _ints(strides), unwrap(offset)), "embedded")

    def broadcast(self, dim: int, extent: Index) -> Tensor:
        """Insert a dimension along which the element is the same."""
        return self._view(t.Broadcast(dim, unwrap(extent)), "broadcast")

    def swizzle(self, bits: int, base: int, shift: int) -> Tensor:
        """Exclusive-or swizzle of the offsets."""
        return self._view(t.Swizzle(bits, base, shift), "swizzled")

    @property
    def unit_dim(self) -> int | None:
        """The dimension whose neighbours are adjacent in memory; the last one if there are several."""
        view = self.value.tensor.view
        for dim in reversed(range(view.rank)):
            step = [add(i, 1) if d == dim else i for d, i in enumerate(view.coords)]
            if expand(add(view.map(view.shape, step).offset, mul(view.offset, -1))) == 1:
                return dim
        return None

    def partition(
        self,
        threads: Layout | Sequence[int],
        projection: Sequence[int | None] | None = None,
        vector_dim: int | None = None,
    ) -> Tensor:
        """Deal the tile to threads, each taking one contiguous chunk.

        Args:
            threads: thread counts per dimension as a layout (its strides order the thread index), or a
                tuple of counts whose last dimension is fastest.
            projection: one entry per thread dimension: 1 keeps it, None drops it, so that its threads hold
                copies; default: all kept.
            vector_dim: the dimension along which a thread's consecutive values lie; default: the last.
        """
        made = thread_map(self.value.tensor.shape, threads, projection, vector_dim)
        name = f"{self.value.buffer.name}_part"
        return Tensor(current().define(Partition, name, source=self.value, distribution=made))

    def __repr__(self) -> str:
        return f"{self.value.name}: {self.memory.value} {self.dtype} {self.value.tensor.view}"


class Number:
    """A floating-point or integer argument of the kernel, or an expression of such."""

    def __init__(self, value: Value) -> None:
        self.value = value
        self.region = current().region_ids[-1]

    def __repr__(self) -> str:
        return self.value.name


Operand = Union["Fragment", Number, float, int]


class Fragment:
    """A tile in registers, distributed over threads.  Arithmetic gives new fragments of the same map."""

    def __init__(self, value: Value, mma: TiledMma | None = None) -> None:
        self.value = value
        self.mma = mma
        self.region = current().region_ids[-1]

    @property
    def shape(self) -> tuple[int, ...]:
        """Extents of the tile."""
        return self.value.fragment.shape

    @property
    def dtype(self) -> DType:
        """Element type."""
        return self.value.dtype

    @property
    def distribution(self) -> Distribution:
        """Which thread holds which coordinate in which value."""
        return self.value.fragment.distribution

    def __add__(self, other: Operand) -> Any:
        return elementwise("add", self, other)

    def __radd__(self, other: Operand) -> Any:
        return elementwise("add", other, self)

    def __sub__(self, other: Operand) -> Any:
        return elementwise("sub", self, other)

    def __rsub__(self, other: Operand) -> Any:
        return elementwise("sub", other, self)

    def __mul__(self, other: Operand) -> Any:
        return elementwise("mul", self, other)

    def __rmul__(self, other: Operand) -> Any:
        return elementwise("mul", other, self)

    def __truediv__(self, other: Operand) -> Any:
        return elementwise("div", self, other)

    def __rtruediv__(self, other: Operand) -> Any:
        return elementwise("div", other, self)

    def __neg__(self) -> Any:
        return elementwise("neg", self)

    def __lt__(self, other: Operand) -> Any:
        return elementwise("less", self, other)

    def __le__(self, other: Operand) -> Any:
        return elementwise("less_equal", self, other)

    def __bool__(self) -> bool:
        raise TraceError(f"fragment {self.value.name} has no truth value; use tw.where", here())

    def _in_place(self, function: str, other: Operand) -> Fragment:
        return self.assign(elementwise(function, self, other))

    def __iadd__(self, other: Operand) -> Fragment:
        return self._in_place("add", other)

    def __isub__(self, other: Operand) -> Fragment:
        return self._in_place("sub", other)

    def __imul__(self, other: Operand) -> Fragment:
        return self._in_place("mul", other)

    def __itruediv__(self, other: Operand) -> Fragment:
        return self._in_place("div", other)

    def to(self, element: DType | str) -> Any:
        """The same values in another dtype, rounded to nearest even."""
        return elementwise("convert", self, dtype=dtype(element))

    def assign(self, other: Fragment) -> Fragment:
        """Overwrite the contents with those of another fragment of the same map; converts the dtype."""
        current().emit(Copy, source=other.value, target=self.value)
        return self

    def __repr__(self) -> str:
        return f"{self.value.name}: {self.dtype} fragment {self.shape}"


def elementwise(function: str, *operands: Operand, dtype: DType | None = None) -> Any:
    """Record an elementwise function of fragments and numbers."""
    values = tuple(o.value if isinstance(o, Fragment | Number) else _number(o) for o in operands)
    result = current().define(Elementwise, function, function=function, operands_=values, dtype=dtype)
    return Fragment(result) if result.is_fragment else Number(result)


def _number(value: Any) -> float | int:
    if isinstance(value, Scalar):
        raise TraceError(f"the index {value} cannot be an operand of fragment arithmetic", here())
    if isinstance(value, bool) or not isinstance(value, float | int):
        raise TraceError(
            f"{value!r} of type {type(value).__name__} is no operand of fragment arithmetic", here()
        )
    return value


def _ints(values: Sequence[Index]) -> tuple[Int, ...]:
    return tuple(unwrap(value) for value in values)


def _slice_part(part: Any, extent: Int) -> Int | tuple[Int, Int]:
    if not isinstance(part, slice):
        index = unwrap(part)
        return extent + index if isinstance(index, int) and index < 0 else index
    if part.step not in (None, 1):
        raise TraceError(f"slice step {part.step!r}; only 1 is possible", here())
    bounds = []
    for given, default in ((part.start, 0), (part.stop, extent)):
        at: Int = default if given is None else unwrap(given)
        bounds.append(extent + at if isinstance(at, int) and at < 0 else at)
    return (bounds[0], bounds[1])


def thread_map(
    shape: Sequence[Int],
    threads: Layout | Sequence[int],
    projection: Sequence[int | None] | None = None,
    vector_dim: int | None = None,
) -> Distribution:
    """The distribution of a tile over a thread layout, one contiguous chunk per thread.

    Raises:
        LayoutError: symbolic extents, threads that do not divide the tile, or a thread layout that is no
            bijection onto 0..T-1.
    """
    counts, order = _thread_counts(threads)
    kept = [dim for dim, keep in enumerate(projection or (1,) * len(counts)) if keep is not None]
    if projection is not None and len(projection) != len(counts):
        raise LayoutError(f"projection {tuple(projection)} for threads {counts} of another rank")
    if not all(isinstance(extent, int) for extent in shape):
        raise LayoutError(f"threads can be laid over a static tile only, not over shape {tuple(shape)}")
    if len(kept) != len(shape):
        raise LayoutError(
            f"threads {counts} keep {len(kept)} dimensions, the tile {tuple(shape)} has {len(shape)}; "
            "nearest legal choice: a projection with one 1 per tile dimension"
        )
    tile = [int(extent) for extent in shape if isinstance(extent, int)]
    base = blocked(
        tile, [counts[dim] for dim in kept], [kept.index(dim) for dim in order if dim in kept], vector_dim
    )
    modes = iter(base.threads)
    spread = tuple(next(modes) if dim in kept else Mode(counts[dim], None, 0) for dim in order)
    return Distribution(base.shape, spread, base.values)


def _thread_counts(threads: Layout | Sequence[int]) -> tuple[tuple[int, ...], list[int]]:
    """Thread counts per dimension, and the dimensions in order of their stride, fastest first."""
    if not isinstance(threads, Layout):
        counts = tuple(int(count) for count in threads)
        return counts, list(reversed(range(len(counts))))
    shape, strides = as_tuple(threads.shape), as_tuple(threads.stride)
    if not all(isinstance(n, int) for n in (*shape, *strides)):
        raise LayoutError(f"thread layout {threads} must have one static extent and stride per dimension")
    order = sorted(range(len(shape)), key=lambda dim: (strides[dim], -dim if shape[dim] == 1 else dim))
    expected = 1
    for dim in order:
        if shape[dim] > 1 and strides[dim] != expected:
            raise LayoutError(
                f"thread layout {threads} does not number its threads 0 to {_product(shape) - 1}: dimension "
                f"{dim} has stride {strides[dim]}, expected {expected}"
            )
        expected *= shape[dim]
    return tuple(shape), order


def _product(values: Sequence[int]) -> int:
    total = 1
    for value in values:
        total *= value
    return total
