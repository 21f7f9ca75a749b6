"""How a complex product is launched: one kernel on the arrays as they lie, or planes of operands first."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import prod

from tilewright import dtypes
from tilewright.arch import Arch
from tilewright.checking.compare import Accumulation
from tilewright.dataflow.nodes import EXACT, TF32
from tilewright.dtypes import DType
from tilewright.ops.complex_doubled import DOUBLED, Doubled
from tilewright.ops.complex_parts import are_paired, as_pairs
from tilewright.ops.complex_products import HALVES, OPERANDS, SUMS
from tilewright.ops.complex_splitting import Tiling, splitting_of_both
from tilewright.ops.halves import UNIT, Part, once, transposed, turned
from tilewright.ops.launching import Prepass
from tilewright.ops.planes import PLANES, Planes, is_dense, prepass_of
from tilewright.ops.prepasses import prepass_pays
from tilewright.ops.problem import IMAGINARY, Problem
from tilewright.runtime.arrays import ArrayInfo
from tilewright.runtime.frameworks import Strided
from tilewright.schedule.needs import ROW_BYTES
from tilewright.schedule.question import Splitting
from tilewright.schedule.schedule import Schedule

# ---------------------------------------------------------------- halves in scratch memory

UNITS = ("p", "q")
"""The arrays of the units of rows of A, and of columns of B."""

PAIR_BYTES = 8
"""Of a number of both parts side by side."""


@dataclass(frozen=True)
class Halves:
    """The halves of one operand.

    Args:
        name: of the operand, whose rows are those along M or N.
        half: the layout of each of its four halves.
        units: that of the units of its rows.
        tiling: how they are made.
        both: whether the second halves are made too; else the first ones stand for them, and nobody reads
            them.
    """

    name: str
    half: Part
    units: Part
    tiling: Tiling
    both: bool = True

    @staticmethod
    def of(name: str, infos: Mapping[str, ArrayInfo], problem: Problem, *, both: bool = True) -> Halves:
        """The halves of an operand, contiguous along its rows.

        Args:
            name: ``"a"`` or ``"b"``.
            infos: the arrays of the problem, by name.
            problem: what is multiplied.
            both: whether the second halves are made too.
        """
        of_b = name == "b"
        *batch, rows, depth = turned(problem.operands[name].shape, of_b)
        *lead, row_step, depth_step = turned(infos[name].strides, of_b)
        own = [extent if step else 1 for extent, step in zip(batch, lead, strict=True)]  # one of what repeats
        pitch = -(-rows // UNIT) * UNIT
        steps = [bool(step) * pitch * depth * prod(own[at + 1 :]) for at, step in enumerate(lead)]
        unit_steps = [bool(step) * rows * prod(own[at + 1 :]) for at, step in enumerate(lead)]
        along_k = rows == 1 or (depth > 1 and abs(depth_step) < abs(row_step))
        return Halves(
            name,
            Part(dtypes.f16, (*batch, rows, depth), (*steps, 1, pitch)),
            Part(dtypes.f32, (*batch, rows), (*unit_steps, 1)),
            Tiling.of(depth, turned=along_k, packed=are_paired(infos[name], infos[name + IMAGINARY])),
            both,
        )

    @property
    def rank(self) -> int:
        """Dimensions of its batches."""
        return len(self.units.shape) - 1

    @property
    def places(self) -> tuple[int, ...]:
        """Which of the halves lies where, in the order of `ARRAYS`."""
        return (0, 1, 2, 3) if self.both else (0, 0, 1, 1)

    @property
    def size_bytes(self) -> int:
        """Of all halves and the units."""
        return len({*self.places}) * self.half.bytes + self.units.bytes

    @property
    def moved_bytes(self) -> int:
        """What is read, both times, and written."""
        numbers = self.half.bytes // dtypes.f16.bytes
        return 2 * PAIR_BYTES * numbers + self.size_bytes

    def arrays(self, re: Strided, im: Strided, address: int) -> tuple[Strided, ...]:
        """The operand's parts, its halves from an address on, and the units, all with rows along M or N."""
        parts = [as_pairs(re, dtypes.i64)] * 2 if self.tiling.packed else [re, im]
        if self.name == "b":
            parts = [transposed(one) for one in parts]
        halves = [self.half.at(address + at * self.half.bytes, re) for at in self.places]
        return (*parts, *halves, self.units.at(address + self.size_bytes - self.units.bytes, re))


@dataclass(frozen=True)
class BothHalves:
    """The halves of both operands, which one launch makes.

    Args:
        a: those of A.
        b: those of B.
    """

    a: Halves
    b: Halves

    @property
    def both(self) -> bool:
        """Whether there are second halves."""
        return self.a.both

    @property
    def size_bytes(self) -> int:
        """Of the memory that they take."""
        return self.a.size_bytes + self.b.size_bytes

    @property
    def moved_bytes(self) -> int:
        """What the launch reads and writes."""
        return self.a.moved_bytes + self.b.moved_bytes

    def prepass(self, arrays: Mapping[str, Strided]) -> Prepass:
        """The launch that makes them.

        Args:
            arrays: of the product, by name.
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
        return Prepass(kernel, tuple(given), tuple(names), made)


# ---------------------------------------------------------------- strategies


METHODS = ("4m", "3m")
"""By how many products of real matrices a complex one is computed."""

STRIDED_SHARE = {"f16": 0.12, "bf16": 0.12, "tf32": 0.25, "f32": 0.45}
"""Of the highest rate, what is reached on operands of which every other number is skipped, by what is
multiplied.  That of f32 was measured (0.42 to 0.46); the others are estimates."""


@dataclass(frozen=True)
class ComplexStrategy:
    """The launches of a complex product: the kernel that multiplies, and the prepass before it, if any.

    Args:
        method: one of `METHODS`.
        planes: the planes of operands that one launch writes first.
        halves: the halves of both operands, which one launch writes first; None: parts are multiplied.
        doubled: the second operand with each part twice, which one launch writes first. One real product of
            it and the first operand follows; None: four products, or three.
    """

    method: str
    planes: tuple[Planes, ...] = ()
    halves: BothHalves | None = None
    doubled: Doubled | None = None

    @property
    def operands(self) -> tuple[str, ...]:
        """The arrays that the kernel multiplies."""
        if self.doubled is not None:
            return ("a", DOUBLED)
        if self.halves is not None:
            return (*HALVES, *UNITS)
        return OPERANDS if self.method == METHODS[0] else (*OPERANDS, *SUMS)

    @property
    def size_bytes(self) -> int:
        """Of the memory that planes or halves take."""
        return sum(one.size_bytes for one in self._first)

    @property
    def moved_bytes(self) -> int:
        """What is read and written before the product."""
        return sum(one.moved_bytes for one in self._first)

    @property
    def rounds(self) -> bool:
        """Whether planes of both operands are written first, rounded to tf32."""
        return len(self.planes) == 2 and all(one.rounded for one in self.planes)

    def accumulation(self, schedule: Schedule) -> Accumulation:
        """How the product adds up under a schedule, and how its numbers lose what is not multiplied."""
        how = Accumulation.of(schedule.atom, schedule.promote * schedule.block_k or None)
        return replace(how, rounding="nearest") if self.rounds else how

    @property
    def _first(self) -> tuple[Planes | BothHalves | Doubled, ...]:
        made = tuple(one for one in (self.halves, self.doubled) if one is not None)
        return made or self.planes

    def prepass(self, arrays: Mapping[str, Strided], *, on_host: bool) -> Prepass | None:
        """The launch before the product, if there is one.

        Args:
            arrays: of the product, by name.
            on_host: whether a block is one thread.
        """
        made = self.halves or self.doubled
        if made is not None:
            return made.prepass(arrays)
        return prepass_of(self.planes, arrays, 0, on_host=on_host) if self.planes else None

    def __str__(self) -> str:
        if self.doubled is not None:
            return "one real product, behind a kernel that writes each part of b twice"
        products = {"4m": "four products", "3m": "three products"}[self.method]
        if self.halves is not None:
            products = "twelve products of halves" if self.halves.both else "four products of first halves"
            return f"{products} in one kernel, behind one that makes them"
        names = " and ".join(f"{_words(one)} of {one.name}" for one in self.planes)
        return f"{products} in one kernel" + (f", behind planes: {names}" if names else "")


def _words(planes: Planes) -> str:
    words = dict(zip(PLANES, ("real parts", "imaginary parts", "sums"), strict=True))
    return ", ".join(words[end] for end in planes.kept)


def by_halves(infos: Mapping[str, ArrayInfo], problem: Problem, *, both: bool = True) -> ComplexStrategy:
    """The strategy by products of halves.

    Args:
        infos: the arrays of the problem, by name.
        problem: what is multiplied.
        both: whether of both halves, or of the first one of each number.
    """
    made = (Halves.of(name, infos, problem, both=both) for name in ("a", "b"))
    return ComplexStrategy(METHODS[0], halves=BothHalves(*made))


def by_one_product(
    infos: Mapping[str, ArrayInfo],
    problem: Problem,
    machine: tuple[Arch, int],
    conjugates: tuple[bool, ...],
) -> ComplexStrategy | None:
    """The strategy by one real product of halves side by side; None if another is estimated to be faster.

    What is written for it is twice the second operand, which alone is read; of planes both are read and
    written.

    Args:
        infos: the arrays of the problem, by name; the result is the product, and nothing else.
        problem: what is multiplied.
        machine: its architecture, and how many processors there are.
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
    """The strategy that is estimated to take least time.

    Planes serve bulk copies, which a schedule may ask for, matrix units that are fed by them, and
    multiply-adds of f32, whose operands are copied 16 bytes at a time where they are dense; everywhere else
    one kernel reads the arrays as they lie.  Three products take planes of sums on every machine.  Where
    tiles are less than 128 bytes deep, planes are contiguous along M and N.  Hopper's multiply cuts numbers
    off to tf32: where one operand needs planes for it, both have them, rounded to nearest.

    Args:
        infos: the arrays of the problem, by name.
        problem: what is multiplied.
        method: one of `METHODS`.
        precision: how exactly f32 is multiplied.
        machine: its architecture, and how many processors there are.
        how: the caller's schedule; else one will be chosen, which splits K so, if that is said.
        conjugates: which operands are conjugated.
    """
    arch, processors = machine
    # Hopper's multiply reads f32 from memory and cuts it off to tf32.
    truncates = how.atom.rounding == "truncate" if isinstance(how, Schedule) else "wgmma" in arch.features
    cuts_off = precision == TF32 and truncates
    k_major = cuts_off or (precision == TF32 and "wgmma" in arch.features)  # as its multiply takes them
    major = "k" if k_major else "mn" if _is_shallow(how, infos["a"].dtype, method, arch) else ""
    strided = list[str]()  # operands that bulk copies cannot carry
    for name in ("a", "b"):
        dim = (-1 if (name == "a") == (major == "k") else -2) if major else None
        if not all(is_dense(infos[name + end], dim) for end in PLANES[:2]):
            strided.append(name)
    if isinstance(how, Schedule):
        wanted = strided if how.by_bulk else []
    elif how is not None and how.batch_invariant:
        wanted = []  # whether planes pay depends on how many rows there are
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
    """Whether tiles are less deep than rows of 128 bytes, by which bulk copies bring what lies along K.

    Those that are chosen for three products of 16 bits on Hopper are: of six operands no three stages of
    128 x 128 x 64 fit into shared memory.
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
    """Whether planes of some operands are estimated to be paid back by the faster product."""
    rates = machine[0].rates
    has_tf32 = rates is not None and TF32 in rates.tensor_flops
    kind = TF32 if precision == TF32 and has_tf32 else infos["a"].dtype.name
    if not strided or kind not in STRIDED_SHARE:
        return False
    flops = 8 * prod(problem.batch) * problem.m * problem.n * problem.k
    moved = sum(Planes.of(name, infos[name], PLANES[:2]).moved_bytes for name in strided)
    return prepass_pays(flops, kind, moved, STRIDED_SHARE[kind], machine)
