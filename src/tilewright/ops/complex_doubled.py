"""Complex products of f16 as one real product, whose second operand holds each part twice.

Interleaved complex numbers A are a real matrix ``[Ar, Ai]`` with twice as many columns, and so is the result
``[Dr, Di]``; neither is copied.  A prepass reads B, and writes the second operand ``[[Br, Bi], [-Bi, Br]]``,
interleaved too: each number of B, and the number times i.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

from tilewright import dtypes
from tilewright.lang.asynchrony import let_next_begin
from tilewright.lang.launch import block_index
from tilewright.lang.operations import copy, load
from tilewright.lang.scalars import ceil_div
from tilewright.ops.complex_parts import are_paired, as_pairs
from tilewright.ops.ending import Output
from tilewright.ops.launching import Prepass
from tilewright.ops.problem import IMAGINARY, Problem
from tilewright.ops.tiled_product import Operand, TiledProduct, kernel_of
from tilewright.runtime.arrays import ArrayInfo
from tilewright.runtime.frameworks import Strided
from tilewright.runtime.gpu_memory import ALIGNMENT
from tilewright.runtime.kernel import Kernel, kernel
from tilewright.threads.distribution import raked

ROWS, COLUMNS, THREADS, VECTOR = 32, 128, 128, 4
"""Rows and columns of a block's tile of pairs, its threads, and pairs that a thread moves at once."""

FEW_BLOCKS = 2048
"""Most blocks for which the product may start early; as for planes of products of the same size."""

DOUBLED = "b_doubled"
"""The name of the operand that is written."""

LOW, HIGH = 0x8000, -(1 << 31)
"""Sign bits of the real and of the imaginary part in a pair of f16."""

UNIT = 8
"""Rows have a multiple of this number of f16 elements, because bulk copies require it."""


@lru_cache(maxsize=1)
def doubling() -> Kernel:
    """``first = (re, im)`` and ``second = (im, re)`` of pairs, read as integers, with the given signs."""

    @kernel(pairs="S F", first="S F", second="S F")
    def complex_twice(pairs: Any, first: Any, second: Any, *, signs: tuple[int, int]) -> None:
        across = ceil_div(pairs.shape[1], COLUMNS)
        count = across * ceil_div(pairs.shape[0], ROWS)
        let_next_begin(count <= FEW_BLOCKS)
        number, tile = block_index(count), (ROWS, COLUMNS)
        at, wide = (number // across, number % across), COLUMNS // VECTOR
        pair = load(pairs.tile(tile, at), raked(tile, (THREADS // wide, wide), VECTOR, 1))
        turned = (pair << 16) | ((pair >> 16) & 0xFFFF)
        copy(pair ^ signs[0], first.tile(tile, at))
        copy(turned ^ signs[1], second.tile(tile, at))

    return complex_twice


@lru_cache(maxsize=1)
def product_of_doubled() -> Kernel:
    """``D = A B``, where another launch writes B."""

    @kernel_of(A="m k", B="k n", D="m n")
    def gemm_of_pairs() -> TiledProduct:
        return TiledProduct(Operand(("A",)), Operand(("B",)), [Output(("D",))], waits=True)

    return gemm_of_pairs


@dataclass(frozen=True)
class Doubled:
    """The second operand with each part twice.

    Args:
        rows: rows of B, along K.
        columns: columns of B.
        along_k: whether B is contiguous along K.
        signs: signs of the parts of the numbers, and of the numbers times i.
    """

    rows: int
    columns: int
    along_k: bool
    signs: tuple[int, int]

    @staticmethod
    def of(infos: Mapping[str, ArrayInfo], problem: Problem, conjugates: tuple[bool, ...]) -> Doubled | None:
        """The doubled operand of a product; None if the arrays do not allow this method.

        Args:
            infos: the arrays of the problem, by name.
            problem: the product.
            conjugates: which operands are conjugated.
        """
        pairs = {one: (infos[one], infos[one + IMAGINARY]) for one in ("a", "b", "out")}
        beside = all(re.dtype == dtypes.f16 and are_paired(re, im) for re, im in pairs.values())
        if problem.batch or not beside:
            return None
        for info in (infos["a"], infos["out"]):  # bulk copies carry rows of pairs that follow each other
            step, in_row = info.strides
            if in_row != 2 or step % UNIT or info.pointer % (UNIT * dtypes.f16.bytes):
                return None
        of_a, of_b = conjugates[:2]
        step_k, step_n = infos["b"].strides
        along_k, alike = step_k == 2 and step_n != 2, of_a == of_b
        first = HIGH * (alike if along_k else of_b)
        second = HIGH * of_a | LOW * (of_b if along_k else alike)
        return Doubled(problem.k, problem.n, along_k, (first, second))

    @property
    def _fastest(self) -> tuple[int, int]:
        """Extents of B, the contiguous dimension last."""
        return (self.columns, self.rows) if self.along_k else (self.rows, self.columns)

    @property
    def _pitch(self) -> int:
        """Pairs from one row to the next."""
        return -(-2 * self._fastest[1] // UNIT) * UNIT // 2

    @property
    def size_bytes(self) -> int:
        """Bytes of scratch memory."""
        return -(-2 * self._fastest[0] * self._pitch * dtypes.i32.bytes // ALIGNMENT) * ALIGNMENT

    @property
    def moved_bytes(self) -> int:
        """Bytes that the prepass reads and writes."""
        return 3 * self.rows * self.columns * dtypes.i32.bytes

    def prepass(self, arrays: Mapping[str, Strided]) -> Prepass:
        """The launch that writes the doubled operand.

        Args:
            arrays: the arrays of the product, by name.
        """
        given, pitch = as_pairs(arrays["b"], dtypes.i32), self._pitch
        steps = given.info.strides[::-1] if self.along_k else given.info.strides
        info = replace(given.info, shape=self._fastest, strides=steps)
        here = replace(info, strides=(2 * pitch, 1), pointer=0, readonly=False)
        there = replace(here, pointer=pitch * dtypes.i32.bytes)
        whole = replace(
            here,
            dtype=dtypes.f16,
            shape=(2 * self.rows, 2 * self.columns),
            strides=(1, 2 * pitch) if self.along_k else (2 * pitch, 1),
        )
        pairs, first, second, made = (Strided(given.array, one) for one in (info, here, there, whole))
        bound = doubling().bind(signs=self.signs)
        return Prepass(bound, (pairs, first, second), ("b", "", ""), {DOUBLED: made})


def as_matrix(re: Strided) -> Strided:
    """Interleaved complex numbers as a real matrix with twice as many columns."""
    (rows, columns), (step, _) = re.info.shape, re.info.strides
    return Strided(re.array, replace(re.info, shape=(rows, 2 * columns), strides=(step, 1)))
