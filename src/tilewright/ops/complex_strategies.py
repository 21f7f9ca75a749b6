"""Strategies of complex products: one kernel on the caller's arrays, or a prepass that rewrites operands."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from math import prod
from typing import Any

from tilewright import dtypes
from tilewright.arch import Arch
from tilewright.checking.compare import Accumulation
from tilewright.dataflow.nodes import EXACT, TF32
from tilewright.dtypes import DType
from tilewright.lang.asynchrony import let_next_begin
from tilewright.lang.launch import block_index
from tilewright.lang.operations import copy, load
from tilewright.lang.scalars import ceil_div
from tilewright.ops.complex_parts import are_paired, as_pairs
from tilewright.ops.complex_products import HALVES, OPERANDS, SUMS
from tilewright.ops.complex_splitting import PartsTiling, splitting_of_both
from tilewright.ops.contraction import Contraction
from tilewright.ops.ending import Output
from tilewright.ops.launching import Prepass
from tilewright.ops.planes import PLANES, Planes, is_dense, prepass_of
from tilewright.ops.planning import prepass_pays
from tilewright.ops.problem import IMAGINARY, Problem
from tilewright.ops.splitting import UNIT, Part, once, transposed, turned
from tilewright.ops.tiled_product import ProductOperand, TiledProduct, kernel_of
from tilewright.runtime.arrays import ArrayInfo
from tilewright.runtime.frameworks import Strided
from tilewright.runtime.gpu_memory import ALIGNMENT
from tilewright.runtime.kernel import Kernel, kernel
from tilewright.schedule.needs import ROW_BYTES
from tilewright.schedule.question import Splitting
from tilewright.schedule.schedule import Schedule
from tilewright.threads.distribution import raked

# ---------------------------------------------------------------- halves in scratch memory

UNITS = ("p", "q")
"""Arrays that hold the units of A's rows, and of B's columns."""

PAIR_BYTES = 8
"""Bytes of an interleaved complex number of two f32."""


@dataclass(frozen=True)
class Halves:
    """The f16 halves of one operand. Its rows run along M or N.

    Args:
        name: the operand.
        half: layout of each of its four halves.
        units: layout of the units of its rows.
        tiling: tiles of the kernel that splits it.
        both: whether the kernel writes the second halves too; otherwise nothing reads them.
    """

    name: str
    half: Part
    units: Part
    tiling: PartsTiling
    both: bool = True

    @staticmethod
    def of(name: str, infos: Mapping[str, ArrayInfo], problem: Problem, *, both: bool = True) -> Halves:
        """Lay out the halves of an operand, contiguous along M or N.

        Args:
            name: ``"a"`` or ``"b"``.
            infos: the arrays of the problem, by name.
            problem: the product.
            both: whether the kernel writes the second halves too.
        """
        of_b = name == "b"
        *batch, rows, depth = turned(problem.operands[name].shape, of_b)
        *lead, row_step, depth_step = turned(infos[name].strides, of_b)
        # A batch with stride 0 is stored once.
        own = [extent if step else 1 for extent, step in zip(batch, lead, strict=True)]
        pitch = -(-rows // UNIT) * UNIT
        steps = [bool(step) * pitch * depth * prod(own[at + 1 :]) for at, step in enumerate(lead)]
        unit_steps = [bool(step) * rows * prod(own[at + 1 :]) for at, step in enumerate(lead)]
        along_k = rows == 1 or (depth > 1 and abs(depth_step) < abs(row_step))
        return Halves(
            name,
            Part(dtypes.f16, (*batch, rows, depth), (*steps, 1, pitch)),
            Part(dtypes.f32, (*batch, rows), (*unit_steps, 1)),
            PartsTiling.of(depth, turned=along_k, packed=are_paired(infos[name], infos[name + IMAGINARY])),
            both,
        )

    @property
    def rank(self) -> int:
        """Number of batch dimensions."""
        return len(self.units.shape) - 1

    @property
    def places(self) -> tuple[int, ...]:
        """Index in memory of each half, in the order of `ARRAYS`."""
        return (0, 1, 2, 3) if self.both else (0, 0, 1, 1)

    @property
    def size_bytes(self) -> int:
        """Bytes of all halves and the units."""
        return len({*self.places}) * self.half.bytes + self.units.bytes

    @property
    def moved_bytes(self) -> int:
        """Bytes that the kernel writes, and reads in two passes."""
        numbers = self.half.bytes // dtypes.f16.bytes
        return 2 * PAIR_BYTES * numbers + self.size_bytes

    def arrays(self, re: Strided, im: Strided, address: int) -> tuple[Strided, ...]:
        """Return the operand's parts, its halves from an address on, and the units, rows along M or N."""
        parts = [as_pairs(re, dtypes.i64)] * 2 if self.tiling.packed else [re, im]
        if self.name == "b":
            parts = [transposed(one) for one in parts]
        halves = [self.half.at(address + at * self.half.bytes, re) for at in self.places]
        return (*parts, *halves, self.units.at(address + self.size_bytes - self.units.bytes, re))


@dataclass(frozen=True)
class BothHalves:
    """The halves of both operands, which one launch writes.

    Args:
        a: the halves of A.
        b: the halves of B.
    """

    a: Halves
    b: Halves

    @property
    def both(self) -> bool:
        """Whether the launch writes the second halves too."""
        return self.a.both

    @property
    def size_bytes(self) -> int:
        """Bytes of scratch memory for both."""
        return self.a.size_bytes + self.b.size_bytes

    @property
    def moved_bytes(self) -> int:
        """Bytes that the launch reads and writes."""
        return self.a.moved_bytes + self.b.moved_bytes

    def prepass(self, arrays: Mapping[str, Strided]) -> Prepass:
        """Return the launch that writes the halves.

        Args:
            arrays: the arrays of the product, by name.
        """
        address = 0
        given, names, made = list[Strided](), list[str](), dict[str, Strided]()
        for one, ours, unit in zip((self.a, self.b), (HALVES[:4], HALVES[4:]), UNITS, strict=True):
            re, im = one.name, one.name + IMAGINARY
            found = one.arrays(arrays[re], arrays[im], address)
            address += one.size_bytes
            names += [re, re if one.tiling.packed else im, *[""] * 5]
            given += [once(array, one.rank) for array in found]
            seen = (transposed(half) if one.name == "b" else half for half in found[2:6])
            made |= dict(zip(ours, seen, strict=True)) | {unit: found[6]}
        tilings = self.a.tiling, self.b.tiling
        kernel = splitting_of_both(self.a.rank, self.b.rank).bind(tilings=tilings, both=self.both)
        return Prepass(kernel, tuple(given), tuple(names), made=made)


# ---------------------------------------------------------------- the second operand with each part twice
#
# Interleaved complex numbers A of f16 are a real matrix ``[Ar, Ai]`` with twice as many columns, and so is
# the result ``[Dr, Di]``; neither is copied. A prepass reads B, and writes the second operand
# ``[[Br, Bi], [-Bi, Br]]``, interleaved too: each number of B, and the number times i.


ROWS, COLUMNS, THREADS, VECTOR = 32, 128, 128, 4
"""Rows and columns of a block's tile of pairs, its threads, and pairs that a thread moves at once."""

FEW_BLOCKS = 2048
"""Most blocks for which the product may start early; as for planes of products of the same size."""

DOUBLED = "b_doubled"
"""The name of the operand that is written."""

LOW, HIGH = 0x8000, -(1 << 31)
"""Sign bits of the real and of the imaginary part in a pair of f16."""


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
    """``D = A B``; a prepass writes B."""

    @kernel_of(A="m k", B="k n", D="m n")
    def gemm_of_pairs() -> TiledProduct:
        return TiledProduct(ProductOperand(("A",)), ProductOperand(("B",)), [Output(("D",))], waits=True)

    return gemm_of_pairs


@dataclass(frozen=True)
class Doubled:
    """The layout of the second operand with each part twice.

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
        are_pairs = all(re.dtype == dtypes.f16 and are_paired(re, im) for re, im in pairs.values())
        if problem.batch or not are_pairs:
            return None
        for info in (infos["a"], infos["out"]):  # bulk copies need contiguous rows of pairs
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
        """Distance between rows, in pairs."""
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
        return Prepass(bound, (pairs, first, second), ("b", "", ""), made={DOUBLED: made})


def as_matrix(re: Strided) -> Strided:
    """Interleaved complex numbers as a real matrix with twice as many columns."""
    (rows, columns), (step, _) = re.info.shape, re.info.strides
    return Strided(re.array, replace(re.info, shape=(rows, 2 * columns), strides=(step, 1)))


# ---------------------------------------------------------------- strategies


METHODS = ("4m", "3m")
"""Methods: four or three real products for one complex product."""

STRIDED_SHARE = {"f16": 0.12, "bf16": 0.12, "tf32": 0.25, "f32": 0.59}
"""Fraction of the peak rate that interleaved operands reach, by multiplied dtype.

The figure of f32 was measured on an H200, whose threads copy both parts at once; the others are estimates.
"""


@dataclass(frozen=True)
class ComplexStrategy:
    """The launches of a complex product: the kernel that multiplies, and the prepass before it, if any.

    Args:
        method: one of `METHODS`.
        planes: the planes of operands that one launch writes first.
        halves: the halves of both operands, which one launch writes first; None: parts are multiplied.
        doubled: the second operand with each part twice, which one launch writes first. One real product with
            the first operand follows; None: four products, or three.
        contraction: how four products see the arrays if one needs a view; None: all are matrices.
    """

    method: str
    planes: tuple[Planes, ...] = ()
    halves: BothHalves | None = None
    doubled: Doubled | None = None
    contraction: Contraction | None = None

    @property
    def operands(self) -> tuple[str, ...]:
        """Names of the arrays that the kernel multiplies."""
        if self.doubled is not None:
            return ("a", DOUBLED)
        if self.halves is not None:
            return (*HALVES, *UNITS)
        return OPERANDS if self.method == METHODS[0] else (*OPERANDS, *SUMS)

    @property
    def size_bytes(self) -> int:
        """Bytes of scratch memory."""
        return sum(one.size_bytes for one in self._first)

    @property
    def moved_bytes(self) -> int:
        """Bytes that the prepass reads and writes."""
        return sum(one.moved_bytes for one in self._first)

    @property
    def rounds(self) -> bool:
        """Whether a prepass writes planes of both operands, rounded to tf32."""
        return len(self.planes) == 2 and all(one.rounded for one in self.planes)

    def accumulation(self, schedule: Schedule) -> Accumulation:
        """Return how a schedule accumulates the product and rounds its operands."""
        how = Accumulation.of(schedule.atom, schedule.promote * schedule.block_k or None)
        return replace(how, rounding="nearest") if self.rounds else how

    @property
    def _first(self) -> tuple[Planes | BothHalves | Doubled, ...]:
        made = tuple(one for one in (self.halves, self.doubled) if one is not None)
        return made or self.planes

    def prepass(self, arrays: Mapping[str, Strided], *, on_host: bool) -> Prepass | None:
        """Return the launch before the product, or None.

        Args:
            arrays: the arrays of the product, by name.
            on_host: whether a block is one thread.
        """
        made = self.halves or self.doubled
        if made is not None:
            return made.prepass(arrays)
        return prepass_of(self.planes, arrays, 0, on_host=on_host) if self.planes else None

    def __str__(self) -> str:
        if self.doubled is not None:
            return "one real product, after a kernel that writes each part of b twice"
        products = {"4m": "four products", "3m": "three products"}[self.method]
        if self.halves is not None:
            count = "twelve products of halves"
            products = count if self.halves.both else "four products of the leading halves"
            return f"{products} in one kernel, after a kernel that splits the operands in halves"
        names = " and ".join(f"{_words(one)} of {one.name}" for one in self.planes)
        return f"{products} in one kernel" + (f", after planes: {names}" if names else "")


def _words(planes: Planes) -> str:
    words = dict(zip(PLANES, ("real parts", "imaginary parts", "sums"), strict=True))
    return ", ".join(words[end] for end in planes.kept)


def by_halves(infos: Mapping[str, ArrayInfo], problem: Problem, *, both: bool = True) -> ComplexStrategy:
    """Return the strategy that multiplies f16 halves.

    Args:
        infos: the arrays of the problem, by name.
        problem: the product.
        both: whether it multiplies both halves of each number, or the first halves alone.
    """
    made = (Halves.of(name, infos, problem, both=both) for name in ("a", "b"))
    return ComplexStrategy(METHODS[0], halves=BothHalves(*made))


def by_one_product(
    infos: Mapping[str, ArrayInfo],
    problem: Problem,
    machine: tuple[Arch, int],
    conjugates: tuple[bool, ...],
) -> ComplexStrategy | None:
    """Return the strategy of one real product, or None if another is estimated to be faster.

    Its prepass reads the second operand and writes it twice.  A prepass that makes planes reads and writes
    both operands.

    Args:
        infos: the arrays of the problem, by name; no term follows the product.
        problem: the product.
        machine: architecture and number of processors.
        conjugates: which operands are conjugated.
    """
    doubled = Doubled.of(infos, problem, conjugates) if "wgmma" in machine[0].features else None
    if doubled is None or not _planes_pay(infos, problem, EXACT, machine, ["b"]):
        return None
    planes = sum(Planes.of(name, infos[name], PLANES[:2]).moved_bytes for name in ("a", "b"))
    return ComplexStrategy(METHODS[0], doubled=doubled) if doubled.moved_bytes <= planes else None


def strategy_for(
    infos: Mapping[str, ArrayInfo],
    problem: Problem,
    method: str,
    precision: str,
    machine: tuple[Arch, int],
    how: Schedule | Splitting | None,
    conjugates: tuple[bool, ...],
) -> ComplexStrategy:
    """Return the strategy with the least estimated time.

    Dense planes allow bulk copies, which a schedule or the matrix units may need, and 16-byte copies for
    multiply-adds of f32.  If planes do not pay, one kernel reads the caller's arrays.  Three products need
    planes of sums on every machine.  If tiles are less than 128 bytes deep, and for multiply-adds of f32,
    planes are contiguous along M and N.  Hopper's multiply truncates numbers to tf32: if one operand needs
    planes for it, both get planes that are rounded to nearest.

    Args:
        infos: the arrays of the problem, by name.
        problem: the product.
        method: one of `METHODS`.
        precision: the caller's precision.
        machine: architecture and number of processors.
        how: the caller's schedule, or constraints on its choice.
        conjugates: which operands are conjugated.
    """
    arch, processors = machine
    # Hopper's multiply reads f32 from memory and cuts it off to tf32.
    truncates = how.atom.rounding == "truncate" if isinstance(how, Schedule) else "wgmma" in arch.features
    cuts_off = precision == TF32 and truncates
    k_major = cuts_off or (precision == TF32 and "wgmma" in arch.features)  # wgmma takes no other tf32
    is_f32 = precision == EXACT and infos["a"].dtype == dtypes.f32
    by_adds = is_f32 and "cp_async" in arch.features and not isinstance(how, Schedule)
    is_shallow = by_adds or _is_shallow(how, infos["a"].dtype, method, arch)
    major = "k" if k_major else "mn" if is_shallow else ""
    strided = list[str]()  # operands that bulk copies, or threads' copies of 16 bytes, cannot load
    for name in ("a", "b"):
        dim = (-1 if (name == "a") == (major == "k") else -2) if major and not by_adds else None
        if not all(is_dense(infos[name + end], dim) for end in PLANES[:2]):
            strided.append(name)
    if isinstance(how, Schedule):
        wanted = strided if how.by_bulk else []
    elif how is not None and how.batch_invariant:
        wanted = []  # whether planes pay depends on the number of rows
    else:
        wanted = strided if _planes_pay(infos, problem, precision, (arch, processors), strided) else []
    if cuts_off and wanted:
        wanted = ["a", "b"]  # so that both are rounded
    found = []
    for name, conjugate in zip(("a", "b"), conjugates, strict=False):
        kept = (*(PLANES[:2] if name in wanted else ()), *(PLANES[2:] if method == METHODS[1] else ()))
        if kept:
            dims = {"k": 1, "mn": 0} if name == "a" else {"k": 0, "mn": 1}
            along = len(problem.batch) + dims[major] if major and name in wanted else None
            found.append(Planes.of(name, infos[name], kept, along, negative=conjugate, rounded=cuts_off))
    return ComplexStrategy(method, tuple(found))


def _is_shallow(how: Schedule | Splitting | None, dtype: DType, method: str, arch: Arch) -> bool:
    """Whether tiles along K are shallower than the 128-byte rows of bulk copies.

    On Hopper, three products of 16 bits have shallow tiles: three stages of their six operands at
    128 x 128 x 64 exceed shared memory.
    """
    if isinstance(how, Schedule):
        return how.block_k * dtype.bytes % ROW_BYTES > 0
    return method == METHODS[1] and dtype.bytes == 2 and "wgmma" in arch.features


def _planes_pay(
    infos: Mapping[str, ArrayInfo],
    problem: Problem,
    precision: str,
    machine: tuple[Arch, int],
    strided: list[str],
) -> bool:
    """Estimate whether planes of some operands save more time than their prepass takes."""
    rates = machine[0].rates
    has_tf32 = rates is not None and TF32 in rates.tensor_flops
    kind = TF32 if precision == TF32 and has_tf32 else infos["a"].dtype.name
    if not strided or kind not in STRIDED_SHARE:
        return False
    flops = 8 * prod(problem.batch) * problem.m * problem.n * problem.k
    moved = sum(Planes.of(name, infos[name], PLANES[:2]).moved_bytes for name in strided)
    return prepass_pays(flops, kind, moved, STRIDED_SHARE[kind], machine)
