"""Planes of operands: real parts, imaginary parts and their sums, as dense arrays in scratch memory.

Planes serve four purposes.  Bulk copies cannot load every other number of an array.  The method of three
products multiplies sums of real and imaginary parts.  ``wgmma`` needs tf32 operands that are contiguous along
K.  Bulk copies need rows that begin at multiples of 16 bytes.  In the last two cases a real operand has a
plane, too.  One launch writes the planes of one operand, or of both.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from math import inf, prod
from typing import Any

from tilewright import dtypes
from tilewright.arch import Arch
from tilewright.dataflow.nodes import EXACT, TF32
from tilewright.dtypes import DType, f32, i32
from tilewright.lang.asynchrony import let_next_begin
from tilewright.lang.exact_functions import absolute, bitcast, where
from tilewright.lang.fragments import Fragment
from tilewright.lang.launch import block_index
from tilewright.lang.operations import barrier, copy, load, shared
from tilewright.lang.scalars import Index, ceil_div
from tilewright.lang.tensors import Tensor
from tilewright.layout.layout import Layout
from tilewright.ops.complex_parts import are_paired, as_pairs, parted
from tilewright.ops.launching import Call, Launch, LaunchPlan, Prepass
from tilewright.ops.planning import LAUNCH_US, copied_us, is_flat, pays, prepass_pays
from tilewright.ops.problem import Problem
from tilewright.ops.products import plain
from tilewright.ops.splitting import FINITE, block_of_both, for_both, operands_of
from tilewright.ops.tiled_product import kernel_by_name
from tilewright.runtime.arrays import ArrayInfo
from tilewright.runtime.frameworks import Strided
from tilewright.runtime.gpu_memory import ALIGNMENT
from tilewright.runtime.kernel import Kernel, kernel
from tilewright.schedule.choice import proposals
from tilewright.schedule.estimate import ELEMENTS
from tilewright.schedule.legality import with_fallback
from tilewright.schedule.load import Load
from tilewright.schedule.question import Question, Splitting
from tilewright.schedule.schedule import Schedule
from tilewright.schedule.sides import width
from tilewright.targets.target import CUDA, TARGETS
from tilewright.threads.distribution import Distribution, raked

# ---------------------------------------------------------------- kernels

ROWS, COLUMNS = 32, 64
"""Rows and columns of a block's tile."""

THREADS = 128
"""Threads of a block on a GPU."""

FEW_BLOCKS = 4096
"""Most blocks for which the product may start early: on an H200 2 % less time to 2048³, 2 % more at 4096³."""

VECTOR_BYTES = 16
"""Bytes of one store of a thread."""

NARROW_BYTES = 4
"""Bytes of one store of a thread whose loads are narrower than `VECTOR_BYTES`.

The lanes of a warp then load from one or two lines at once, and not from five.
"""

TF32_UNIT = 1 << 13
"""The lowest f32 bit that tf32 keeps."""

TF32_END = 2.0**128 - 2.0**116
"""The least f32 number that would round to 2**128, beyond the largest tf32 number."""

PLANES = ("", "_im", "_sum")
"""Suffixes of planes: of real parts, of imaginary parts, and of their sums or differences."""

REAL = PLANES[:1]
"""Planes of a real operand."""

SOURCE_ARRAYS, PLANE_ARRAYS = ("re", "im"), ("first", "second", "both")
"""Arrays of one operand in the kernel: two sources, and three planes."""


def sources_of(kept: tuple[str, ...]) -> tuple[str, ...]:
    """Return the suffixes of the arrays that a kernel reads to write planes."""
    return REAL if kept == REAL else PLANES[:2]


@dataclass(frozen=True)
class Writing:
    """Constants of the kernel that writes the planes of an operand.

    Args:
        kept: which of `PLANES`.
        part: the dtype of real and imaginary parts.
        negative: whether the third plane is the difference, as of a conjugate.
        turned: whether the kernel transposes: planes and sources are contiguous along different dimensions.
        packed: whether the kernel reads both parts as one array of pairs.
        on_host: whether a block is one thread.
        rounded: whether f32 is rounded to tf32, which Hopper's multiply would truncate to.
        vector_bytes: bytes that a thread stores at once.
    """

    kept: tuple[str, ...]
    part: DType
    negative: bool
    turned: bool
    packed: bool
    on_host: bool
    rounded: bool = False
    vector_bytes: int = VECTOR_BYTES

    def spread(self, shape: tuple[int, int]) -> Distribution:
        """Distribute a tile among threads."""
        if self.on_host:
            return raked(shape, (1, 1), 1, 1)
        vector = self.vector_bytes // self.part.bytes
        across = shape[1] // vector
        return raked(shape, (THREADS // across, across), vector, 1)


def _declared(rank: int, name: str, padded: bool) -> dict[str, Any]:
    """Return the extents of an operand's arrays in the kernel.

    Args:
        rank: number of batch dimensions.
        name: the operand if the kernel has two of them, else "".
        padded: whether planes have longer rows than the sources.
    """
    ends = (f"{name.upper()}{dim} " for dim in range(rank)) if name else (f"B{dim} " for dim in range(rank))
    lead, first = "".join(ends), f"{name}_" if name else ""
    made: dict[str, Any] = {f"{first}{array}": f"{lead}S{name} F{name}" for array in SOURCE_ARRAYS}
    rows = f"{lead}S{name} {'P' if padded else 'F'}{name}"
    return made | {f"{first}{array}": rows for array in PLANE_ARRAYS}


@lru_cache(maxsize=16)
def splitting(rank: int, padded: bool = False) -> Kernel:
    """The kernel that writes the planes of an operand, read row after row.

    Args:
        rank: number of batch dimensions.
        padded: whether planes have longer rows than the sources, filled with zeros.
    """

    @kernel(**_declared(rank, "", padded))
    def planes(re: Any, im: Any, first: Any, second: Any, both: Any, *, how: Writing) -> None:
        let_next_begin(_blocks(first) <= FEW_BLOCKS)
        _write((re, im, first, second, both), block_index(_blocks(first)), how)

    return planes


@lru_cache(maxsize=16)
def splitting_of_two(rank: int, padded: bool = False) -> Kernel:
    """The kernel that writes the planes of both operands.

    Args:
        rank: number of batch dimensions of each.
        padded: whether planes have longer rows than the sources, filled with zeros.
    """

    @kernel_by_name(**_declared(rank, "a", padded), **_declared(rank, "b", padded))
    def planes_of_both(given: Any, *, hows: tuple[Writing, Writing]) -> None:
        arrays = operands_of(given, [f"_{name}" for name in (*SOURCE_ARRAYS, *PLANE_ARRAYS)])
        blocks = [_blocks(own[len(SOURCE_ARRAYS)]) for own in arrays]
        number = block_of_both(blocks, FEW_BLOCKS)
        for_both(number, blocks, lambda which, own: _write(arrays[which], own, hows[which]))

    return planes_of_both


def _blocks(plane: Tensor) -> Index:
    """Return the number of blocks for an operand."""
    *batch, rows, columns = plane.shape
    count: Index = ceil_div(columns, COLUMNS) * ceil_div(rows, ROWS) * prod(batch)
    return count


def _write(arrays: Sequence[Tensor], number: Index, how: Writing) -> None:
    """Write one tile of each plane."""
    *batch, rows, columns = arrays[2].shape
    across, down, tile = ceil_div(columns, COLUMNS), ceil_div(rows, ROWS), (ROWS, COLUMNS)
    place = number // across % down, number % across
    number, places = number // (across * down), list[Index]()
    for extent in reversed(batch):
        places.insert(0, number % extent)
        number = number // extent
    re, im, *planes = (array[tuple(places)] if batch else array for array in arrays)
    values = _parts([part.tile(tile, place) for part in (re, im)], how)
    targets = [plane.tile(tile, place) for plane in planes]
    if how.turned:
        held = [shared(tile, how.part, layout=Layout(tile, (COLUMNS + 1, 1))) for _ in values]
        for value, there in zip(values, held, strict=True):
            copy(value, there)
        barrier()
        values = [load(there.permute(1, 0), how.spread((COLUMNS, ROWS))) for there in held]
        targets = [target.permute(1, 0) for target in targets]
    if PLANES[2] in how.kept:
        values.append(values[0] - values[1] if how.negative else values[0] + values[1])
    for end, value, target in zip(PLANES, values, targets, strict=False):
        if end in how.kept:
            copy(round_to_tf32(value) if how.rounded else value, target)


def round_to_tf32(value: Fragment) -> Fragment:
    """Round f32 to tf32: to nearest, ties away from zero, or towards zero if that would overflow.

    Args:
        value: the numbers.
    """
    size, bits = absolute(value), bitcast(value, i32)
    near, cut = (bitcast(bits + half & -TF32_UNIT, f32) for half in (TF32_UNIT >> 1, 0))
    found: Fragment = where(size < TF32_END, near, where(size <= FINITE, cut, value))
    return found


def _parts(given: Sequence[Tensor], how: Writing) -> list[Fragment]:
    """Load the real and imaginary parts of a tile; one fragment for a real operand."""
    spread = how.spread((ROWS, COLUMNS))
    if how.packed:
        return list(parted(load(given[0], spread), how.part))
    return [load(part, spread) for part in given[: len(sources_of(how.kept))]]


# ---------------------------------------------------------------- planes in scratch memory


UNIT_BYTES = 16
"""Alignment of a plane's rows, in bytes: bulk copies need it."""

LINE_BYTES = 128
"""Bytes of a line of the second-level cache.  A part of a row that begins within one takes two lines."""

LONG_ROWS = 8
"""Fewest lines of a row at which rows are aligned to lines, which adds at most an eighth of the bytes."""


@dataclass(frozen=True)
class Planes:
    """The planes of one operand.

    Args:
        name: the operand.
        kept: the suffixes in `PLANES` of the planes that the kernel writes.
        shape: extents, batches first.
        source: the dimension, of the last two, with the smaller stride in the arrays.
        target: the dimension along which planes are contiguous.
        repeated: the batch dimensions along which the operand is broadcast.
        item_bytes: bytes of an element.
        negative: whether the third plane is the difference, for a conjugate.
        rounded: whether numbers are rounded to tf32.
        padded: whether the planes are a copy with padded rows, because bulk copies cannot load the array's.
    """

    name: str
    kept: tuple[str, ...]
    shape: tuple[int, ...]
    source: int
    target: int
    repeated: frozenset[int]
    item_bytes: int
    negative: bool = False
    rounded: bool = False
    padded: bool = False

    @staticmethod
    def of(
        name: str,
        array: ArrayInfo,
        kept: tuple[str, ...],
        along: int | None = None,
        *,
        negative: bool = False,
        rounded: bool = False,
        padded: bool = False,
    ) -> Planes:
        """Lay out the planes of an operand.

        Args:
            name: the operand.
            array: its real parts.
            kept: the suffixes of the planes that the kernel writes.
            along: the dimension, of the last two, that is contiguous in the planes; None: as in the array.
            negative: whether the third plane is the difference.
            rounded: whether numbers are rounded to tf32.
            padded: whether the planes are a copy whose rows are padded.
        """
        rank = len(array.shape)
        steps = [
            abs(step) if extent > 1 else 0 for extent, step in zip(array.shape, array.strides, strict=True)
        ]
        source = rank - 2 if 0 < steps[-2] < steps[-1] else rank - 1
        repeated = frozenset(dim for dim in range(rank - 2) if steps[dim] == 0)
        target = source if along is None else along
        item_bytes, how = array.dtype.bytes, (negative, rounded, padded)
        return Planes(name, kept, array.shape, source, target, repeated, item_bytes, *how)

    @property
    def strides(self) -> tuple[int, ...]:
        """Strides of each plane, in elements."""
        rank = len(self.shape)
        other = 2 * rank - 3 - self.target
        is_long = self.padded and self.shape[self.target] * self.item_bytes >= LONG_ROWS * LINE_BYTES
        unit = (LINE_BYTES if is_long else UNIT_BYTES) // self.item_bytes
        steps = [0] * rank
        steps[self.target] = 1
        reach = steps[other] = -(-max(self.shape[self.target], 1) // unit) * unit
        reach *= max(self.shape[other], 1)
        for dim in reversed(range(rank - 2)):
            if dim not in self.repeated:
                steps[dim] = reach
                reach *= max(self.shape[dim], 1)
        return tuple(steps)

    @property
    def plane_bytes(self) -> int:
        """Bytes from one plane to the next."""
        shape, rank = [*self.shape], len(self.shape)
        if self.padded:  # the kernel fills whole rows
            shape[self.target] = self.strides[2 * rank - 3 - self.target]
        dims = [dim for dim in range(rank) if dim not in self.repeated]
        last = sum((max(shape[dim], 1) - 1) * self.strides[dim] for dim in dims)
        return -(-(last + 1) * self.item_bytes // ALIGNMENT) * ALIGNMENT

    @property
    def size_bytes(self) -> int:
        """Bytes of all planes."""
        return self.plane_bytes * len(self.kept)

    @property
    def moved_bytes(self) -> int:
        """Bytes that the kernel reads and writes."""
        whole = prod(extent for dim, extent in enumerate(self.shape) if dim not in self.repeated)
        return whole * self.item_bytes * (len(sources_of(self.kept)) + len(self.kept))

    def placed(self, like: Strided, address: int) -> dict[str, Strided]:
        """Return the planes at an address, by the names of the kernel's arrays.

        Args:
            like: an array of the operand; its framework supplies the stream.
            address: address of the first plane.
        """
        info = replace(like.info, shape=self.shape, strides=self.strides, readonly=False)
        places = {end: address + at * self.plane_bytes for at, end in enumerate(self.kept)}
        return {
            self.name + end: Strided(like.array, replace(info, pointer=place))
            for end, place in places.items()
        }

    def written(
        self, arrays: Mapping[str, Strided], address: int, *, on_host: bool
    ) -> tuple[Writing, list[Strided], list[str], dict[str, Strided]]:
        """Return the kernel's constants, its arrays, their names in the product, and the planes.

        Args:
            arrays: the arrays of the product, by name.
            address: address of scratch memory for all planes.
            on_host: whether a block is one thread.
        """
        ends = sources_of(self.kept)
        re, im = arrays[self.name + ends[0]], arrays[self.name + ends[-1]]
        packed = not on_host and are_paired(re.info, im.info)
        turned = self.source != self.target
        vector = NARROW_BYTES if self.padded else VECTOR_BYTES
        how = Writing(self.kept, re.info.dtype, self.negative, turned, packed, on_host, self.rounded, vector)
        planes = self.placed(re, address)
        absent = next(iter(planes))  # replaces planes that the kernel does not write
        names = [self.name + end if self.name + end in planes else absent for end in PLANES]
        read = [as_pairs(re)] * 2 if packed else [re, im]
        # The kernel reads repeated batches once, and the contiguous dimension last.
        dims = [*range(len(self.shape) - 2), 2 * len(self.shape) - 3 - self.source, self.source]
        given = list[Strided]()
        for at, one in enumerate((*read, *(planes[name] for name in names))):
            shape = tuple(1 if dim in self.repeated else one.info.shape[dim] for dim in dims)
            strides = tuple(one.info.strides[dim] for dim in dims)
            if self.padded and at >= len(read):
                shape = (*shape[:-1], strides[-2])
            given.append(Strided(one.array, replace(one.info, shape=shape, strides=strides)))
        sources = [self.name, self.name + (PLANES[0] if packed else ends[-1])]
        return how, given, [*sources, *[""] * len(names)], planes


def is_dense(info: ArrayInfo, along: int | None) -> bool:
    """Whether bulk copies can load an array.

    Args:
        info: the array.
        along: the dimension that must be contiguous; None: either of the last two.
    """
    unit = UNIT_BYTES // info.dtype.bytes
    pairs = [pair for pair in zip(info.shape, info.strides, strict=True) if pair[0] > 1]
    last = [step for extent, step in list(zip(info.shape, info.strides, strict=True))[-2:] if extent > 1]
    if along is not None:
        last = [info.strides[along]]
    return (
        1 in last
        and info.pointer % UNIT_BYTES == 0
        and all(step % unit == 0 or step == 1 for _, step in pairs)
    )


def prepass_of(
    planes: Sequence[Planes], arrays: Mapping[str, Strided], address: int, *, on_host: bool
) -> Prepass:
    """Return the launch that writes the planes of one operand, or of both.

    Args:
        planes: the planes of each operand.
        arrays: the arrays of the product, by name.
        address: address of scratch memory for all planes.
        on_host: whether a block is one thread.
    """
    hows, given, names = list[Writing](), list[Strided](), list[str]()
    made: dict[str, Strided] = {}
    for one in planes:
        how, seen, called, written = one.written(arrays, address, on_host=on_host)
        address += one.size_bytes
        hows, given, names, made = [*hows, how], given + seen, names + called, made | written
    rank, padded = len(planes[0].shape) - 2, planes[0].padded
    if len(planes) == 1:
        return Prepass(splitting(rank, padded).bind(how=hows[0]), tuple(given), tuple(names), made=made)
    both = splitting_of_two(rank, padded).bind(hows=tuple(hows))
    return Prepass(both, tuple(given), tuple(names), made=made)


# ---------------------------------------------------------------- prepasses of real operands
#
# Hopper multiplies tf32 operands that are contiguous along K. A prepass rewrites other operands along K, and
# rounds them to tf32.  Another one copies operands of two bytes whose rows bulk copies cannot load.


AS_COPIED = 0.03, 0.25
"""Least and greatest fraction of the peak rate of 16-bit products whose threads copy single elements.

An H200 reaches 0.04 to 0.21 from 10⁹ operations on.  If both fractions lead to one decision, it is final; if
not, the schedules are estimated.
"""

MOST_COPIED_BYTES = 2**30
"""Most bytes of scratch memory of a prepass that copies operands.  The stream keeps them for later calls."""

PADDED_DTYPES = (dtypes.f16, dtypes.bf16)
"""Dtypes of the operands that a prepass copies to padded rows."""

OPERANDS = {"a": -1, "b": -2}
"""Operands, with the dimension that is K."""


def tf32_planes(
    infos: Mapping[str, ArrayInfo],
    problem: Problem,
    how: Schedule | Splitting | None,
    machine: tuple[Arch, int],
) -> tuple[Planes, ...]:
    """Choose the operands that a prepass rewrites along K; none if that is not estimated to pay.

    A caller's schedule, or batch invariance, rules the prepass out.

    Args:
        infos: the arrays of the call.
        problem: the product of these arrays.
        how: the caller's schedule, or constraints on one.
        machine: architecture and number of processors.
    """
    if "wgmma" not in machine[0].features or isinstance(how, Schedule) or (how and how.batch_invariant):
        return ()
    if any(info.dtype == dtypes.f64 for info in infos.values()) or infos["a"].dtype != dtypes.f32:
        return ()
    if not pays(problem, batch_invariant=False):
        return ()
    seen = {name: problem.operands[name].of(infos[name]) for name in OPERANDS}
    if all(seen[name].strides[along] == 1 for name, along in OPERANDS.items()):
        return ()
    planes = written(seen)
    return planes if _planes_pay(planes, infos, problem, TF32, machine) else ()


def padded_planes(
    infos: Mapping[str, ArrayInfo],
    problem: Problem,
    how: Schedule | Splitting | None,
    machine: tuple[Arch, int],
) -> tuple[Planes, ...]:
    """Choose the operands that a prepass copies to padded rows; none if that is not estimated to pay.

    Bulk copies then load them.  The estimates are those of the first schedules that the rules propose for the
    arrays as they are and for the copies, the rate of copies, and the time of a launch.

    A caller's schedule, or batch invariance, rules the prepass out: the caller said how the arrays are
    loaded, or the bits would depend on the number of rows.  So does a copy of more than `MOST_COPIED_BYTES`.

    Args:
        infos: the arrays of the call.
        problem: the product of these arrays.
        how: the caller's schedule, or constraints on one.
        machine: architecture and number of processors.
    """
    kind, features = infos["a"].dtype, machine[0].features
    if "wgmma" not in features or isinstance(how, Schedule) or (how and how.batch_invariant):
        return ()
    if kind not in PADDED_DTYPES or infos["b"].dtype != kind or not is_flat(problem):
        return ()
    seen = {name: problem.operands[name].of(infos[name]) for name in OPERANDS}
    planes = tuple(
        Planes.of(name, info, REAL, padded=True) for name, info in seen.items() if not is_dense(info, None)
    )
    if sum(one.size_bytes for one in planes) > MOST_COPIED_BYTES:
        return ()
    moved = sum(one.moved_bytes for one in planes)
    flops = 2.0 * prod(problem.batch) * problem.m * problem.n * problem.k
    pays_at = [bool(planes) and prepass_pays(flops, kind.name, moved, share, machine) for share in AS_COPIED]
    if pays_at[0] == pays_at[1]:
        return planes if pays_at[0] else ()
    return planes if _planes_pay(planes, infos, problem, EXACT, machine) else ()


def _planes_pay(
    planes: Sequence[Planes],
    infos: Mapping[str, ArrayInfo],
    problem: Problem,
    precision: str,
    machine: tuple[Arch, int],
) -> bool:
    """Estimate whether the product of planes takes so much less time that the prepass pays.

    Args:
        planes: the operands that the prepass writes.
        infos: the arrays of the call.
        problem: the product of these arrays.
        precision: precision of the products.
        machine: architecture and number of processors.
    """
    seen = {name: problem.operands[name].of(infos[name]) for name in (*OPERANDS, "out")}
    copies = {one.name: replace(seen[one.name], strides=one.strides, pointer=0) for one in planes}
    given = seen, {**seen, **copies}
    as_they_are, written_first = (_estimated_us(one, precision, machine) for one in given)
    moved = sum(one.moved_bytes for one in planes)
    return written_first + copied_us(moved, machine[0]) + LAUNCH_US < as_they_are


def _estimated_us(arrays: Mapping[str, ArrayInfo], precision: str, machine: tuple[Arch, int]) -> float:
    """Return the estimated time of a product, in µs; infinite if bulk copies would need the fallback engine.

    Args:
        arrays: ``a``, ``b`` and ``out`` as matrices.
        precision: precision of the products.
        machine: architecture and number of processors.
    """
    given = [Strided(None, arrays[name]) for name in ("a", "b", "out")]
    kernel = plain(len(arrays["out"].shape) - 2).bind(precision=precision, schedule=None)
    question = kernel.question(*given, target=CUDA.name, arch=machine[0].name)
    assert isinstance(question, Question), "the kernel is a product"
    question = replace(question, processors=machine[1] or question.processors)
    first = next(proposals(question))
    asked = first.schedule, question.form, question.classes, question.arch
    if with_fallback(*asked)[0] != first.schedule:
        return inf
    # The models of bulk copies leave out the stores by threads of results that bulk copies cannot store.
    results = [question.form.spec(store.operand, question.classes) for store in question.form.stores]
    stores = first.schedule.by_bulk and min(map(width, results)) < UNIT_BYTES
    return first.estimate + (ELEMENTS.stored_us(Load(question, first.schedule)) if stores else 0.0)


def planes_of(
    infos: Mapping[str, ArrayInfo],
    problem: Problem,
    precision: str,
    how: Schedule | Splitting | None,
    machine: tuple[Arch, int],
) -> tuple[Planes, ...]:
    """Choose the operands of a real product that a prepass writes to scratch memory first; often none.

    Args:
        infos: the arrays of the call.
        problem: the product of these arrays.
        precision: the caller's precision.
        how: the caller's schedule, or constraints on one.
        machine: architecture and number of processors.
    """
    if infos["a"].dtype == dtypes.f32:
        return tf32_planes(infos, problem, how, machine) if precision == TF32 else ()
    return padded_planes(infos, problem, how, machine)


def written(seen: Mapping[str, ArrayInfo]) -> tuple[Planes, ...]:
    """Return the planes of the operands that bulk copies cannot load along K.

    Args:
        seen: the operands as matrices, by name.
    """
    return tuple(
        Planes.of(name, seen[name], REAL, len(seen[name].shape) + along, rounded=True)
        for name, along in OPERANDS.items()
        if not is_dense(seen[name], along)
    )


def plan_from_planes(planes: tuple[Planes, ...], call: Call, product: Launch) -> LaunchPlan:
    """Plan a prepass that writes operands to scratch memory, and the product.

    Args:
        planes: the operands that the prepass writes.
        call: the arrays of the call.
        product: the product of the caller's arrays.
    """
    seen = dict(zip(product.names, product.arrays, strict=True))
    before = prepass_of(planes, seen, 0, on_host=not TARGETS[call.target].warps)
    reason = "tensor cores read tf32 operands only if they are contiguous along K"
    if planes[0].padded:
        copied = " and ".join(one.name for one in planes)
        reason = f"rows of {copied} do not begin at multiples of {UNIT_BYTES} bytes, as bulk copies need"
    return call.plan_with_prepass(before, product, sum(one.size_bytes for one in planes), reason)
