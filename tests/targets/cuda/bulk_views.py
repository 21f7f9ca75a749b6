"""Bulk copies between tiles in shared memory and views of all kinds equal NumPy's."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from tests.movers.random_movers import Array, Placed, moves_right, random_bits

import tilewright as tw
from tilewright.ir.kernel import Kernel

WIDTH = 64  # 16-bit elements in a row of 128 bytes


def same(tile: Any) -> Any:
    """Return the tile unchanged, as it is in shared memory."""
    return tile


@dataclass(frozen=True)
class ViewCase:
    """One kind of view.

    Args:
        names: the tensor's dimensions.
        shape: their extents.
        count: how many tiles there are.
        lies: how a tile lies in shared memory: its shape.
        view: the tile of a number, of the tensor.
        expected: the tile of a number, of an array.
        turned: the tile as the copies see it, of that in shared memory.
    """

    names: str
    shape: tuple[int, ...]
    count: int
    lies: tuple[int, ...]
    view: Callable[[Any, Any], Any]
    expected: Callable[[Any, int], Any]
    turned: Callable[[Any], Any] = same

    def kernel(self, way: str) -> Any:
        """``Z[number] = view of X``, or ``view of X = Z[number]``, for each number."""

        def load(X, Z):
            number = tw.block_index((self.count,))[0]
            held, full = self._held(X), tw.hopper.mbarrier(1, arrivals=1)
            tw.barrier()
            tw.hopper.arrive(full[0], expect_bytes=int(np.prod(self.lies)) * X.dtype.bytes)
            tw.hopper.tma_load(self.view(X, number), held, full[0])
            tw.hopper.wait(full[0], 0)
            tw.copy(held, Z[number].tile(held.shape, (0,) * len(held.shape)), threads=128)

        def store(X, Z):
            number = tw.block_index((self.count,))[0]
            held = self._held(X)
            tw.copy(Z[number].tile(held.shape, (0,) * len(held.shape)), held, threads=128)
            tw.hopper.fence_async()
            tw.barrier()
            tw.hopper.tma_store(held, self.view(X, number))
            tw.hopper.bulk_commit()
            tw.hopper.bulk_wait(0)

        tiles = " ".join(f"T{dim}" for dim in range(len(self.tile) + 1))
        return tw.kernel(X=self.names, Z=tiles)(load if way == "load" else store)

    def _held(self, X: Any) -> Any:
        return self.turned(tw.shared(self.lies, X.dtype, swizzle=128, name="held"))

    @property
    def tile(self) -> tuple[int, ...]:
        """The shape of a tile as copies see it."""
        return self.turned(np.empty(self.lies, np.int8)).shape

    def arrays(self) -> tuple[Array, Array]:
        """Return the tensor and the tiles, with poison around both."""
        return _whole(self.shape), _whole((self.count, *self.tile))

    def trace(self, way: str) -> Kernel:
        tensor, tiles = self.arrays()
        return self.kernel(way).trace(tensor.array, tiles.array)

    def is_right(self, way: str, target: str) -> bool:
        """Run on random bits; return whether every byte of the result, and around it, is right."""
        loads, arrays = way == "load", self.arrays()
        given, wanted = random_bits(arrays[not loads]), self.arrays()[loads]
        for number in range(self.count):
            if loads:
                wanted.array[number] = self.expected(given, number)
            else:
                self.expected(wanted.array, number)[...] = given[number]
        return moves_right(self.kernel(way), arrays, wanted, target, loads=loads)


def _whole(shape: tuple[int, ...]) -> Array:
    strides = tuple(int(np.prod(shape[dim + 1 :])) for dim in range(len(shape)))
    return Array(shape, Placed(strides, 8), tw.f16)


def _windows(stride: int) -> tuple[Callable[[Any, Any], Any], Callable[[Any, int], Any]]:
    """One tap of a 3 x 3 filter over images of 9 x 15, padded by 1, in blocks of 4 x 8 positions."""
    down, across = (9 - 1) // stride + 1, (15 - 1) // stride + 1

    def view(X, number):
        taps = X.embed(1, (down, 3), (stride, 1), 1).embed(3, (across, 3), (stride, 1), 1)
        image, tap = number // 9, number % 9
        return taps[image, :, tap // 3, :, tap % 3].tile((4, 8, WIDTH), (0, 0, 0))

    def expected(x, number):
        image, tap = number // 9, number % 9
        padded = np.pad(x, ((0, 0), (1, 1), (1, 1), (0, 0)))[image]
        found = padded[tap // 3 :, tap % 3 :][: stride * down : stride, : stride * across : stride]
        found = found[:down, :across]
        whole = np.zeros((4, 8, WIDTH), x.dtype)
        part = found[:4, :8]
        whole[: part.shape[0], : part.shape[1]] = part
        return whole

    return view, expected


_BOTH = {
    "slice": ViewCase(
        *("M N", (40, 160), 2, (32, WIDTH)),
        lambda X, t: X[5:37, 24:152].tile((32, WIDTH), (0, t)),
        lambda x, t: x[5:37, 24 + 64 * t : 24 + 64 * t + 64],
    ),
    "slice to the end": ViewCase(
        *("M N", (40, 160), 2, (16, WIDTH)),
        lambda X, t: X[8:, 96:].tile((16, WIDTH), (t, 0)),
        lambda x, t: x[8 + 16 * t : 24 + 16 * t, 96:160],
    ),
    "one of a stack": ViewCase(
        *("P M N", (3, 16, 128), 6, (16, WIDTH)),
        lambda X, t: X[t // 2].tile((16, WIDTH), (0, t % 2)),
        lambda x, t: x[t // 2, :, 64 * (t % 2) : 64 * (t % 2) + 64],
    ),
    "a row of each": ViewCase(
        *("P M N", (8, 5, 64), 5, (8, WIDTH)),
        lambda X, t: X[:, t].tile((8, WIDTH), (0, 0)),
        lambda x, t: x[:, t],
    ),
    "permuted": ViewCase(
        *("P M N", (6, 16, 64), 4, (8, 3, WIDTH)),
        lambda X, t: X.permute(1, 0, 2).tile((8, 3, WIDTH), (t // 2, t % 2, 0)),
        lambda x, t: x.transpose(1, 0, 2)[8 * (t // 2) :, 3 * (t % 2) :][:8, :3],
    ),
    "both turned": ViewCase(
        *("M N", (32, 128), 4, (16, WIDTH)),
        lambda X, t: X.permute(1, 0).tile((WIDTH, 16), (t // 2, t % 2)),
        lambda x, t: x.T[64 * (t // 2) :, 16 * (t % 2) :][:64, :16],
        lambda tile: tile.transpose(1, 0) if isinstance(tile, np.ndarray) else tile.permute(1, 0),
    ),
    "merged rows": ViewCase(
        *("P M N", (4, 16, 64), 2, (32, WIDTH)),
        lambda X, t: X.tile((2, 16, WIDTH), (t, 0, 0)).merge(0),
        lambda x, t: x[2 * t : 2 * t + 2].reshape(32, 64),
    ),
}
"""Boxes that lie inside of the tensor: they are loaded and stored."""

_LOADED = {
    "padded": ViewCase(
        *("H W C", (10, 13, 64), 12, (4, 8, WIDTH)),
        lambda X, t: X.pad((1, 1, 0), (1, 1, 0)).tile((4, 8, WIDTH), (t // 3, t % 3, 0)),
        lambda x, t: np.pad(x, ((1, 9), (1, 17), (0, 0)))[4 * (t // 3) :, 8 * (t % 3) :][:4, :8],
    ),
    "ragged": ViewCase(
        *("M N", (37, 72), 6, (16, WIDTH)),
        lambda X, t: X.tile((16, WIDTH), (t // 2, t % 2)),
        lambda x, t: np.pad(x, ((0, 11), (0, 56)))[16 * (t // 2) :, 64 * (t % 2) :][:16, :64],
    ),
    **{
        f"im2col, stride {stride}": ViewCase(
            *("B H W C", (2, 9, 15, 64), 18, (4, 8, WIDTH)), *_windows(stride)
        )
        for stride in (1, 2)
    },
}
"""Boxes that reach over edges, and those with steps: they are loaded alone."""

CASES = [
    *((name, case, way) for name, case in _BOTH.items() for way in ("load", "store")),
    *((name, case, "load") for name, case in _LOADED.items()),
]
