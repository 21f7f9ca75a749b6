"""What a schedule takes of a multiprocessor, in closed form: threads, shared memory, registers.

The expanded kernel says the same, and a test compares the two; these are for asking about thousands of
schedules, and for saying before anything is expanded what is too much.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import combinations

from tilewright.arch import Arch
from tilewright.dtypes import DType
from tilewright.ir.kernel import BARRIER_BYTES
from tilewright.ir.mma import TiledMma
from tilewright.lang.specs import TensorSpec
from tilewright.schedule.beside import groups_in
from tilewright.schedule.bulk import COPYING_WARPS
from tilewright.schedule.bulk_decoding import SETS, part_depth
from tilewright.schedule.bulk_views import against_tiles
from tilewright.schedule.epilogue.buffers import spare
from tilewright.schedule.epilogue_resources import (
    BARRIERS,
    PARTIAL,
    RESULT,
    RING,
    SUMS,
    TICKET,
    TICKET_BYTES,
    Buffer,
    Leaving,
)
from tilewright.schedule.fixup import is_clustered, is_flat, is_split
from tilewright.schedule.form import Form
from tilewright.schedule.lane_runs import Taken, common_run, lanes_along_k, row_gap
from tilewright.schedule.plans import values_of_sums
from tilewright.schedule.scaled_sums import ScaledTile, brought
from tilewright.schedule.schedule import Schedule
from tilewright.schedule.sides import Side
from tilewright.schedule.stages import (
    MOST_ROWS,
    Together,
    elems_of,
    is_packed_first,
    packed_elems,
    panel_rows,
)
from tilewright.targets.target import Target, owner


@dataclass(frozen=True)
class Case:
    """A schedule for a kernel, on arrays of some classes, on a machine.

    A tile of no whole atoms is taken as the nearest that is, so that all else that is wrong can be said too.

    Args:
        schedule: the schedule.
        form: what is computed; kept as the schedule multiplies it.
        specs: the classes of the arrays.
        arch: the machine.
    """

    schedule: Schedule
    form: Form
    specs: Mapping[str, TensorSpec]
    arch: Arch

    def __post_init__(self) -> None:
        object.__setattr__(self, "form", self.form.arranged(self.schedule.swap_ab))

    @cached_property
    def target(self) -> Target:
        """The target that the machine is one of."""
        return owner(self.arch.name)

    @property
    def is_bulk(self) -> bool:
        """Whether bulk copies fill the ring, from a role of their own."""
        return self.schedule.staging == "tma"

    @property
    def is_decoding_bulk(self) -> bool:
        """Whether operand A comes by bulk copies, and is decoded in registers that are multiplied from."""
        return self.is_bulk and self.schedule.atom.asynchronous and not self.form.a.is_plain

    @property
    def is_persistent(self) -> bool:
        """Whether a block computes one tile after the other."""
        schedule = self.schedule
        return schedule.batches > 1 or (bool(schedule.blocks) and schedule.split_k in (1, "stream"))

    @property
    def is_swizzled(self) -> bool:
        """Whether operands lie in rows of 128 bytes under the swizzle."""
        return self.is_bulk or self.schedule.atom.asynchronous

    @property
    def units(self) -> tuple[int, int, int]:
        """What the extents of the tile are multiples of: one atom of each warp of each group."""
        (m, n, k), (along_m, along_n) = self.schedule.atom.shape, self.schedule.warps
        return m * along_m * self.schedule.cooperating, n * along_n, k

    @cached_property
    def tile(self) -> tuple[int, int, int]:
        """The tile, or the nearest one of whole atoms."""
        m, n, k = (max((e + u // 2) // u, 1) * u for e, u in zip(self.schedule.tile, self.units, strict=True))
        return m, n, k

    @cached_property
    def mma(self) -> TiledMma:
        """The tiled MMA of one group."""
        m, n, _ = self.tile
        schedule, rows = self.schedule, m // self.schedule.cooperating
        turns = schedule.interleaved and not schedule.atom.asynchronous
        return TiledMma(schedule.atom, schedule.warps, tile=(rows, n), interleaved=turns)

    @cached_property
    def sides(self) -> tuple[Side, ...]:
        """The operands, those along M first."""
        (rows, columns, _), form = self.mma.tile, self.form
        is_shared = self.schedule.alternates or (self.is_bulk and self.schedule.roles != "ping-pong")
        sharing = self.schedule.groups if is_shared else 0
        along_m = (("A", factor, rows, sharing) for factor in form.rows_m)
        along_n = (("B", factor, columns, 0) for factor in form.rows_n)
        return tuple(
            Side(
                label,
                factor,
                form.spec(factor.part.operand, self.specs),
                extent,
                groups,
                self.schedule.atom,
            )
            for label, factor, extent, groups in (*along_m, *along_n)
        )

    # ------------------------------------------------------------ what it takes

    @property
    def threads(self) -> int:
        """Threads of a block."""
        if not self.is_bulk:
            return self.mma.threads * self.schedule.cooperating * self.schedule.along_k
        return self.copying + self.schedule.groups * self.mma.threads

    @property
    def copying(self) -> int:
        """Threads of the roles that copy, or store what others have computed."""
        if self.schedule.registers:
            return COPYING_WARPS * self.arch.lanes
        return (1 + self.storing_warps) * self.arch.lanes

    @property
    def storing_warps(self) -> int:
        """Warps that store what others have computed."""
        return self.schedule.groups if self.leaving.is_handed_over else 0

    def box_rows(self, side: Side) -> int:
        """Rows of the boxes by which an operand comes that is contiguous along K."""
        rows = max(side.sharing, 1) * side.rows // self.parts(side)
        return next((n for n in range(min(rows, MOST_ROWS), 0, -1) if rows % n == 0), 0)

    def against_load(self, side: Side) -> Iterator[tuple[str, str]]:
        """Why bulk copies do not load an operand, and how its array could be changed."""
        factor, boxes = side.factor, (self.box_rows(side) or side.rows, side.width)
        spans = (factor.row, factor.depth)
        if side.along_rows:
            boxes, spans = (self.tile[2], side.width), (factor.depth, factor.row)
        part = factor.part
        return against_tiles(self.form, part.operand, part.at, spans, self.specs, boxes, stored=False)

    def has_parts(self, side: Side) -> bool:
        """Whether the blocks of a cluster share an operand in equal parts."""
        return max(side.sharing, 1) * side.rows % self.parts(side) == 0

    def parts(self, side: Side) -> int:
        """How many blocks of a cluster copy a part each of an operand, for all of them."""
        return self.schedule.cluster[1 if side.label == "A" else 0]

    @property
    def accumulators(self) -> int:
        """Registers of a thread that hold sums."""
        values = values_of_sums(self.mma, len(self.form.totals), self.schedule.promote)
        return -(-values * self.schedule.atom.c_dtype.bytes // 4) + self._of_scales

    @property
    def _of_scales(self) -> int:
        """Registers of a thread that hold the scales of a sum."""
        schedule = self.schedule
        tile = ScaledTile(self.mma, self.tile[2], self.schedule.cooperating, not schedule.balanced)
        scaled = [(side.at, side.factor.scale) for side in self.sides if side.factor.scale is not None]
        return sum(one.size_values for at, scale in scaled for one in tile.maps(at, scale))

    @property
    def held(self) -> int:
        """Registers of a thread that hold operands beside the sums: what is certainly there at once."""
        if self.schedule.staging == "registers":
            multiplied = (self._multiplied(side) for side in self.sides if self.schedule.alternates)
            return sum(self._prefetched(side) for side in self.sides) + sum(multiplied)
        if self.schedule.staging == "fragments" and not self.schedule.atom.asynchronous:
            return sum(self._of_part(side) for side in self.sides)
        return self._of_decoded_part if self.is_decoding_bulk else 0

    def _prefetched(self, side: Side) -> int:
        """Registers of the next tile of an operand, and of this one if it goes past shared memory."""
        depth = self.tile[2]
        if not self.goes_past(side):
            values = self.copied_rows(side) * depth // self.mma.threads or 1
            return -(-values * side.dtype.bytes // 4)
        return 2 * self._multiplied(side)

    def _multiplied(self, side: Side) -> int:
        """Registers of a tile of an operand that is multiplied from there."""
        return -(-self._values(side, self.tile[2]) * side.dtype.bytes // 4)

    def _values(self, side: Side, depth: int) -> int:
        """Numbers of a thread that multiplies a tile of an operand, so deep."""
        return (self.mma.b if side.at else self.mma.a)(depth).size_values

    def copied_rows(self, side: Side) -> int:
        """Rows of the part of an operand's tile that its threads copy together: a group, or all."""
        return side.rows // self.schedule.cooperating if self.schedule.alternates and side.at else side.rows

    def goes_past(self, side: Side) -> bool:
        """Whether an operand goes past shared memory, straight into the registers that multiply."""
        return self.schedule.staging == "registers" and side.label.lower() in self.schedule.bypass

    def kept(self, side: Side) -> DType:
        """The dtype of an operand in shared memory: that in which it is multiplied, if it is computed."""
        atom = self.schedule.atom
        if self.schedule.staging == "registers" and not side.factor.is_plain:
            return (atom.a_dtype, atom.b_dtype)[side.at]
        return side.kept

    def stage_bytes(self, side: Side) -> int:
        """Bytes of one stage of an operand, row by row."""
        return self.kept(side).bytes_of(max(side.sharing, 1) * side.rows * self.tile[2])

    def together(self, side: Side) -> Together | None:
        """How an operand lies in shared memory, if not as its array."""
        made = Together(self.schedule.k1[side.at], self.schedule.extra_rows[side.at])
        return made if made.k1 and made.k1 <= self.tile[2] else None

    @cached_property
    def run(self) -> int:
        """How many neighbours along K a lane multiplies of packed operands; 0: as instructions have them."""
        if self.schedule.staging != "fragments":
            return 0
        taken = [
            Taken(side.dtype, side.along_k, side.at, not side.factor.is_plain, tuple(side.factor.runs))
            for side in self.sides
        ]
        return common_run(self.schedule.atom, self.tile[2], taken)

    @property
    def part_depth(self) -> int:
        """How deep the parts are for which two sets of registers take turns."""
        atom = self.schedule.atom
        return self.run * lanes_along_k(atom.a) if self.run else atom.shape[2]

    def _of_part(self, side: Side) -> int:
        """Registers of both sets of an operand's parts, as they come and, if they are decoded, as they go."""
        atom, values = self.schedule.atom, self._values(side, self.part_depth)
        kinds = [] if self.run and side.dtype.is_packed else [side.factor.held]
        if not side.factor.is_plain:
            kinds.append((atom.a_dtype, atom.b_dtype)[side.at])
        return sum(2 * -(-values * kind.bytes // 4) for kind in kinds)

    @property
    def _of_decoded_part(self) -> int:
        """Registers of a part of operand A as it comes, and of the sets that it is decoded into."""
        kind = self.schedule.atom.a_dtype
        values = self.mma.a(part_depth(kind)).size_values
        raw = sum(-(-values * factor.dtype.bytes // 4) for factor in self.form.rows_m)
        return raw + SETS * len(self.form.rows_m) * -(-values * kind.bytes // 4)

    @property
    def leaving(self) -> Leaving:
        """How its results leave."""
        lanes = self.schedule.atom.lanes if not self.schedule.atom.asynchronous else self.arch.lanes
        return Leaving(self.schedule, self.form, self.specs, self.mma, lanes)

    @cached_property
    def shared(self) -> tuple[Buffer, ...]:
        """Everything in shared memory, in order."""
        return (
            *self._ring(),
            *self.leaving.buffers(),
            *self._sums(),
            *self._barriers(),
            *self._tickets(),
            *self.leaving.tickets(),
        )

    @property
    def _stages(self) -> int:
        """Of the rings of all groups that share a tile along K."""
        return self.schedule.stages * self.schedule.along_k

    def _ring(self) -> Iterator[Buffer]:
        for side in self.sides:
            size = self._stages * self.stage_bytes(side)
            if together := self.together(side):
                rows = max(side.sharing, 1) * side.rows
                layout = together.layout(self._stages, rows, self.tile[2])
                size = elems_of(layout) * self.kept(side).bytes
            elif self.run and side.dtype.is_packed:
                pitch = self.tile[2] + row_gap(side.dtype, self.tile[2])
                rows = self._stages * side.rows
                size = side.dtype.bytes_of((rows - 1) * pitch + self.tile[2])
            elif self.schedule.staging == "panels":
                unit = panel_rows(self.schedule.atom, side.label == "A", side.along_rows)
                kind = side.factor.view.dtype
                size = packed_elems(side.rows, self.tile[2], unit, kind) * kind.bytes
                is_first = is_packed_first(side.dtype, kind, unit, along_rows=side.along_rows)
                if is_first and side.factor.is_converted:
                    narrow = packed_elems(side.rows, self.tile[2], unit, side.dtype) * side.dtype.bytes
                    yield Buffer(f"s{side.factor.name}_narrow", RING, narrow, self.is_swizzled)
            if not self.goes_past(side):
                yield Buffer(f"s{side.factor.name}", RING, size, self.is_swizzled)

        for part, size in brought(self.schedule, self.form, self.specs):
            yield Buffer(f"s{part.operand.name}", RING, size)
        for side in self.sides if self.run else ():
            for part in side.factor.beside:
                count = groups_in(part, side.factor.depth, self.tile[2])
                size = self._stages * side.rows * count * part.operand.dtype.bytes
                if count:
                    yield Buffer(f"s{part.operand.name}", RING, size)

    def _sums(self) -> Iterator[Buffer]:
        """What the blocks of a cluster, or the groups of a block, read of each other."""
        if is_clustered(self.schedule) or self.schedule.along_k > 1:
            (rows, columns, _), kind = self.mma.tile, self.schedule.atom.c_dtype
            behind = spare(kind, along_rows=False)
            groups = self.leaving.groups * self.schedule.along_k
            count = groups * rows * (columns + behind) - behind
            yield Buffer("partial_sums", SUMS, count * kind.bytes)

    def _barriers(self) -> Iterator[Buffer]:
        if self.is_bulk:
            for name in ("full", "empty"):
                yield Buffer(name, BARRIERS, self.schedule.stages * BARRIER_BYTES)
            if self.schedule.roles == "ping-pong":
                yield Buffer("turn", BARRIERS, self.schedule.groups * BARRIER_BYTES)

    def _tickets(self) -> Iterator[Buffer]:
        if not is_split(self.schedule) or self.schedule.reduction not in ("workspace", "atomic"):
            return
        steps = 2 if self.schedule.reduction == "workspace" and not is_flat(self.schedule) else 1
        for _ in range(steps):
            yield Buffer("ticket", TICKET, TICKET_BYTES * (self.schedule.groups if self.is_bulk else 1))

    @property
    def shared_bytes(self) -> int:
        """Bytes of shared memory of a block."""
        total = 0
        for buffer in self.shared:
            total = _up(total, buffer.align) + buffer.bytes
        apart = any(self._are_apart(*pair) for pair in combinations(self.shared, 2))
        return min(total, self._overlaid()) if apart else total

    def _overlaid(self) -> int:
        """Bytes where buffers lie in the same memory: the largest first, each as low as others leave room."""
        placed: list[tuple[int, int, Buffer]] = []
        for buffer in sorted(self.shared, key=lambda one: -one.bytes):
            at = 0
            for low, high, other in sorted(placed, key=lambda one: one[:2]):
                if self._are_apart(buffer, other):
                    continue
                if at + buffer.bytes <= low:
                    break
                at = max(at, _up(high, buffer.align))
            placed.append((at, at + buffer.bytes, buffer))
        return max(high for _, high, _ in placed)

    def _are_apart(self, one: Buffer, other: Buffer) -> bool:
        """Whether two buffers may lie in the same memory.

        So may results and what was used before them, where a barrier of the whole block stands between, no
        engine beside the threads has used what was there, and the block computes one tile alone.
        """
        schedule, kinds = self.schedule, {one.kind, other.kind}
        in_cluster = is_clustered(schedule)  # where no barrier holds the threads of one block alone
        if schedule.stores_by_groups or in_cluster or self.is_persistent or not self.target.machine_code:
            return False
        if schedule.atom.asynchronous and RING in kinds:
            return False
        if self.run and kinds == {TICKET, RING}:
            return False  # some threads alone copy the scales of groups into the ring
        return kinds in ({RESULT, PARTIAL}, {RESULT, RING}, {TICKET, RING}) or (
            is_split(schedule) and kinds == {PARTIAL, RING}
        )


def _up(count: int, unit: int) -> int:
    return -(-count // unit) * unit
