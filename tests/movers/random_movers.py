"""Random movers: memories, threads and widths; arrays of any shape, stride and start."""

from __future__ import annotations

import random
from dataclasses import dataclass, replace
from functools import cache
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import numpy as np

import tilewright as tw
from tilewright.ir.legality import widest_vector
from tilewright.ir.ops import Copy
from tilewright.runtime.gpu_memory import DeviceArray

COUNT = 300
"""How many movers there are."""

POISON = 0xA5
GUARD_BYTES = 256
REGISTER_BYTES = 256
"""Of one fragment in one thread."""

DTYPES = (
    *("f16", "f16", "bf16", "bf16", "f32", "f64", "f8e4m3", "f8e5m2"),
    *("i8", "u8", "i16", "u16", "i32", "u32", "u64", "i64", "c32", "c64", "c128"),
)
PATHS = (
    "global-global",
    "global-register-global",
    "global-register-register-global",
    "global-shared-global",
    "global-async-shared-global",
    "global-shared-shared-global",
    "global-shared-register-global",
    "global-register-shared-global",
    "global-shared-register-shared-global",
)
LAYOUTS = ("rows", "columns", "padded rows", "padded columns", "swizzled")
TILES = ((16, 16), (32, 32), (64, 32), (32, 64), (64, 64), (48, 32), (16, 128), (128, 16))


def held(layout: str, tile: tuple[int, int], dtype: Any) -> Any:
    """A tile in shared memory, with the author's layout."""
    rows, columns = tile
    if layout == "swizzled":
        return tw.shared(tile, dtype, swizzle=tw.Swizzle(2, max(4 - dtype.bytes.bit_length() + 1, 0), 3))
    pad = 16 // dtype.bytes if layout.startswith("padded") else 0
    strides = (columns + pad, 1) if layout.endswith("rows") else (1, rows + pad)
    return tw.shared(tile, dtype, layout=tw.Layout(tile, strides))


@tw.kernel(X="M N", Y="M N")
def mover(X, Y, *, tile, path, spread, back, vector, layout):
    """``Y = X``, along a path through the memories."""
    m, n = tw.block_index(tw.ceil_div(X.shape, tile))
    source, target = X.tile(tile, (m, n)), Y.tile(tile, (m, n))
    _, *between, _ = path.split("-")
    if not between:
        tw.copy(source, target, threads=spread, vector=vector)
        return
    if between[0] == "register":
        here = tw.load(source, spread, vector=vector)
    else:
        here = held(layout, tile, X.dtype)
        if between.pop(0) == "async":
            tw.copy_async(source, here, threads=spread, vector=vector)
            tw.async_commit()
            tw.async_wait(0)
        else:
            between.insert(0, "shared")
            tw.copy(source, here, threads=spread, vector=vector)
        tw.barrier()
    for was, memory in pairwise(between):
        there = held(layout, tile, X.dtype) if memory == "shared" else tw.fragment(spread, X.dtype)
        tw.copy(here, there, threads=back if (was, memory) == ("shared", "shared") else None)
        if memory == "shared":
            tw.barrier()
        here = there
    tw.copy(here, target, threads=back if between[-1] == "shared" else None)


@dataclass(frozen=True)
class Placed:
    """The place of an array: strides and start in elements; arrays that are read may have strides of 0.

    It starts at its lowest element, which is not the first one where strides are negative.
    """

    strides: tuple[int, int]
    start: int


@dataclass(frozen=True)
class Mover:
    """One mover."""

    number: int
    dtype: str
    shape: tuple[int, int]
    x: Placed
    y: Placed
    tile: tuple[int, int]
    path: str
    spread: tw.Distribution
    back: tw.Distribution
    vector: int | None
    layout: str

    @property
    def bound(self) -> Any:
        """The kernel."""
        names = ("tile", "path", "spread", "back", "vector", "layout")
        return mover.bind(**{name: getattr(self, name) for name in names})

    def arrays(self) -> tuple[Array, Array]:
        """Return X with random bits and Y with poison, each inside of poison."""
        made = [Array(self.shape, placed, tw.dtype(self.dtype)) for placed in (self.x, self.y)]
        bits = np.random.default_rng(self.number).integers(0, 256, made[0].array.nbytes, np.uint8)
        made[0].array[...] = np.frombuffer(bits.tobytes(), made[0].array.dtype).reshape(self.shape)
        return made[0], made[1]

    def trace(self) -> Any:
        """Trace the kernel."""
        x, y = self.arrays()
        return self.bound.trace(x.array, y.array)

    def moves_every_bit(self, target: str) -> bool:
        """Return whether Y gets X's bits on a target, and the memory around Y does not change."""
        x, y = self.arrays()
        if target == "cuda":
            kept, source = x.on_gpu()
            buffer, result = y.on_gpu()
            ran = self.bound(source, result)
            y.buffer[...] = buffer.host()
            del kept  # X's memory is needed until the kernel has ended
        else:
            ran = self.bound(x.array, y.array, target=target)
        assert ran.target == target
        return y.same_bits(x)


class Array:
    """An array inside of a buffer of poison whose address is a multiple of 256 bytes."""

    def __init__(self, shape: tuple[int, int], placed: Placed, dtype: Any) -> None:
        size = dtype.bytes
        steps = [(n - 1) * s for n, s in zip(shape, placed.strides, strict=True)]
        reach = 0 if 0 in shape else 1 + sum(map(abs, steps))
        before = 0 if 0 in shape else -sum(step for step in steps if step < 0)
        bytes_ = GUARD_BYTES + (placed.start + reach) * size + GUARD_BYTES
        raw = np.full(bytes_ + 256, POISON, np.uint8)
        self.buffer = raw[-raw.ctypes.data % 256 :][:bytes_]
        self.offset = GUARD_BYTES + (placed.start + before) * size
        self.strides = tuple(s * size for s in placed.strides)
        self.array = np.ndarray(shape, dtype.numpy, self.buffer, self.offset, self.strides)

    def on_gpu(self) -> tuple[DeviceArray, DeviceArray]:
        """Return a copy of the whole buffer on the GPU, and the array in it."""
        buffer = DeviceArray.of(self.buffer)
        held = buffer.memory
        memory = SimpleNamespace(address=held.address + self.offset, index=held.index, driver=held.driver)
        return buffer, DeviceArray(memory, self.array.shape, self.strides, tw.dtype(self.array.dtype))

    def same_bits(self, other: Array) -> bool:
        """Return whether both hold the same bits, and poison is still around this one."""
        return self._bits() == other._bits() and self.is_whole_around()

    def is_whole_around(self) -> bool:
        """Return whether the memory around this tile and between its rows is still poison."""
        return bool((self.around() == POISON).all())

    def _bits(self) -> bytes:
        return np.ascontiguousarray(self.array).tobytes()

    def around(self) -> Any:
        """Return the bytes of the buffer, with poison in place of the array."""
        rest = self.buffer.copy()
        size = self.array.itemsize
        inside = np.ndarray((*self.array.shape, size), np.uint8, rest, self.offset, (*self.strides, 1))
        inside[...] = POISON
        return rest


def random_bits(given: Array) -> np.ndarray:
    """Fill an array with random bits, and return it."""
    bits = np.random.default_rng(given.array.ndim).integers(0, 256, given.array.nbytes, np.uint8)
    given.array[...] = bits.view(given.array.dtype).reshape(given.array.shape)
    return given.array


def moves_right(kernel: Any, arrays: tuple[Array, Array], wanted: Array, target: str, *, loads: bool) -> bool:
    """Launch a kernel that moves a tensor to tiles, or back; return whether every byte is right.

    Args:
        kernel: takes the tensor and the tiles.
        arrays: both, with the kernel's input.
        wanted: the expected result, with the bytes around it.
        target: the target.
        loads: whether the tiles are the result.
    """
    given, result = arrays if loads else arrays[::-1]
    if target == "cuda":
        (kept, source), (buffer, place) = given.on_gpu(), result.on_gpu()
        ran = kernel(*((source, place) if loads else (place, source)))
        result.buffer[...] = buffer.host()
        del kept  # its memory is needed until the kernel has ended
    else:
        ran = kernel(*(one.array for one in arrays), target=target)
    assert ran.target == target
    return bool((result.buffer == wanted.buffer).all())


@cache
def drawn(number: int) -> Mover:
    """Return the mover of a number."""
    draw = random.Random(number)
    dtype, tile = draw.choice(DTYPES), draw.choice(TILES)
    easy = draw.random() < 0.4  # for wide accesses
    whole = easy or draw.random() < 0.3
    major = draw.choice((0, 1))
    repeated = draw.choice(((), (), (), (), (), (), (0,), (1,), (0, 1)))
    turns = random.Random(f"turns {number}")
    shape = tuple(draw.randint(1, 3) * side if whole else draw.randint(1, 3 * side) for side in tile)
    made = Mover(
        number,
        dtype,
        (shape[0], shape[1]),
        turned(_repeated(_placed(draw, (shape[0], shape[1]), major, easy), repeated), turns),
        turned(_placed(draw, (shape[0], shape[1]), major if easy else draw.choice((0, 1)), easy), turns),
        tile,
        draw.choice(PATHS),
        *(_spread(draw, tile, tw.dtype(dtype), major if easy else draw.choice((0, 1))) for _ in range(2)),
        None,
        draw.choice(LAYOUTS),
    )
    least = 4 // tw.dtype(dtype).bytes if "async" in made.path else 1
    widths = [1 << n for n in range(widest_of(made).bit_length()) if 1 << n >= least]
    return replace(made, vector=draw.choice([None, *widths, *widths[-1:], *widths[-1:]]))


def widest_of(made: Mover) -> int:
    """Return the widest access that the copy out of X may use."""
    return widest_vector(next(op for op in made.trace().walk() if isinstance(op, Copy)))


def _placed(draw: random.Random, shape: tuple[int, int], major: int, easy: bool) -> Placed:
    """Draw a place contiguous along ``major``, or along neither; strides and start have any divisor."""
    if easy:
        other = -(-shape[major] // 16) * 16 + draw.choice((0, 16))
        return Placed((other, 1) if major == 1 else (1, other), draw.choice((0, 16)))
    unit = draw.choice((1, 1, 1, 1, 1, 2))
    least = shape[major] * unit
    multiple = draw.choice((1, 2, 8, 16, 16))
    other = -(-(least + draw.choice((0, 0, 3))) // multiple) * multiple
    strides = (other, unit) if major == 1 else (unit, other)
    return Placed(strides, draw.choice((0, 0, 0, 16, 16, 1, 2, 3, 8)))


def _repeated(placed: Placed, dims: tuple[int, ...]) -> Placed:
    """Return the place with one row, column or element for all, as NumPy broadcasts it: strides of 0."""
    rows, columns = (0 if dim in dims else stride for dim, stride in enumerate(placed.strides))
    return replace(placed, strides=(rows, columns))


def turned(placed: Placed, draw: random.Random) -> Placed:
    """Return a place in the same memory, often with negative strides."""
    dims = draw.choice(((), (), (0,), (0,), (1,), (0, 1)))
    rows, columns = (-stride if dim in dims else stride for dim, stride in enumerate(placed.strides))
    return replace(placed, strides=(rows, columns))


def _spread(draw: random.Random, tile: tuple[int, int], dtype: Any, along: int) -> tw.Distribution:
    """Draw a distribution with as many values for each thread as registers hold."""
    while True:
        made = _any_spread(draw, tile, dtype, along)
        if made.size_values * dtype.bytes <= REGISTER_BYTES:
            return made


def _any_spread(draw: random.Random, tile: tuple[int, int], dtype: Any, along: int) -> tw.Distribution:
    """Draw chunks, interleaved vectors, warps with base tiles, or the operands of an atom."""
    kind = draw.choice(("blocked", "raked", "base tiles", "atom", "atom"))
    if kind == "atom" and dtype.name in tw.atoms.TENSOR_CORE:
        atom = tw.atoms.TENSOR_CORE[dtype.name]
        base = draw.choice((atom.a, atom.b, atom.c))
        if all(side % unit == 0 for side, unit in zip(tile, base.shape, strict=True)):
            return _warped(draw, tile, base)
    if kind == "base tiles":
        try:
            return _warped(draw, tile, tw.base_tile(tile, dtype, contiguous=along))
        except tw.LayoutError:
            kind = "raked"
    if kind == "raked":
        vector = draw.choice([n for n in (1, 2, 4, 8, 16) if n * dtype.bytes <= 16])
        units = [vector if dim == along else 1 for dim in (0, 1)]
        threads = [_count(draw, side // unit) for side, unit in zip(tile, units, strict=True)]
        return tw.raked(tile, threads, vector, along)
    threads = [_count(draw, side) for side in tile]
    order = draw.choice(((0, 1), (1, 0)))
    if draw.random() < 0.5:
        return tw.blocked(tile, threads, order, along)
    chunk = tile[along] // threads[along]
    vector = draw.choice([n for n in (1, 2, 4, 8) if chunk % n == 0])
    return tw.blocked(tile, threads, order, along, draw.choice(((0, 1), (1, 0))), vector)


def _warped(draw: random.Random, tile: tuple[int, int], base: tw.Distribution) -> tw.Distribution:
    fits = [
        (grid, reuse, along)
        for grid in ((1, 1), (2, 1), (1, 2), (2, 2), (4, 1))
        for reuse, along in ((None, None), ("row", 0), ("row", 1), ("column", 0), ("column", 1))
        if _divides(tile, base, grid, reuse, along)
    ]
    grid, reuse, along = draw.choice(fits)
    return tw.by_warps(tile, base, grid, reuse=reuse, along=along)


def _divides(tile: Any, base: Any, grid: Any, reuse: str | None, along: int | None) -> bool:
    try:
        tw.by_warps(tile, base, grid, reuse=reuse, along=along)
    except tw.LayoutError:
        return False
    return True


def _count(draw: random.Random, most: int) -> int:
    return draw.choice([n for n in (1, 2, 4, 8, 16) if most % n == 0])
