"""A family of Hopper GEMMs, C = A Bᵀ, in the explicit language: one kernel text for many forms of it.

A `Form` says how a block's tile is made of warpgroups' tiles, who takes which tile when, how operands are
staged and shared in a cluster, and how C leaves. `hopper_forms.py` measures forms beside cuBLAS.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from hopper_form import BOX_ROWS, ROW_BYTES, WARPS, Form, tile_order

import tilewright as tw


@dataclass(frozen=True)
class Operand:
    """An operand's ring of stages: what is loaded into it, and what a warpgroup multiplies.

    Args:
        source: the array; rows x K, or K x rows if ``along``.
        held: stages of rows x K; if ``along``, stages of panels of K x 64 rows.
        rows: of a stage.
        along: whether the array lies along its rows instead of along K.
    """

    source: Any
    held: Any
    rows: int
    along: bool

    @staticmethod
    def of(source: Any, rows: int, stages: int, along: bool, name: str) -> Operand:
        width = ROW_BYTES // source.dtype.bytes
        shape = (stages, rows // width, width, width) if along else (stages, rows, width)
        return Operand(source, tw.shared(shape, source.dtype, swizzle=128, name=name), rows, along)

    @property
    def bytes(self) -> int:
        """Of a stage."""
        return self.rows * ROW_BYTES

    @property
    def extent_k(self) -> Any:
        return self.source.shape[0 if self.along else 1]

    def load(self, stage: Any, row: Any, k: Any, barrier: Any, parts: int, part: Any, axis: int) -> None:
        """Load a stage; in a cluster only one of ``parts``, for all blocks along the axis."""
        width = ROW_BYTES // self.source.dtype.bytes
        count = self.rows // parts
        if self.along:
            for i in tw.unroll(count // width):
                panel = part * (count // width) + i
                box = self.source.tile((width, width), (k, row // width + panel))
                tw.hopper.tma_load(box, self.held[stage, panel], barrier, multicast=axis)
            return
        size = next(n for n in range(min(count, BOX_ROWS), 0, -1) if count % n == 0)
        for i in tw.unroll(count // size):
            number = part * (count // size) + i
            box = self.source.tile((size, width), (row // size + number, k))
            place = self.held[stage].tile((size, width), (number, 0))
            tw.hopper.tma_load(box, place, barrier, multicast=axis)

    def part(self, stage: Any, number: Any, rows: int) -> Any:
        """Some rows of a stage, as rows x K."""
        if not self.along:
            return self.held[stage].tile((rows, self.held.shape[2]), (number, 0))
        width = self.held.shape[3]
        panels = self.held[stage].tile((rows // width, width, width), (number, 0, 0))
        return panels.permute(0, 2, 1).merge(0)


@dataclass(frozen=True)
class Ring:
    """Stages that one role fills and others empty; in a cluster they are released to all who fill them."""

    stages: int
    full: Any
    empty: Any
    cluster: tuple[int, int]
    place: Any

    @staticmethod
    def of(form: Form, place: Any) -> Ring:
        releasing = WARPS * (1 if form.pingpong else form.groups) * (sum(form.cluster) - 1)
        full = tw.hopper.mbarrier(form.stages, arrivals=1)
        return Ring(
            form.stages, full, tw.hopper.mbarrier(form.stages, arrivals=releasing), form.cluster, place
        )

    def acquire(self, step: Any, expected: int) -> Any:
        """Wait until a stage is empty, and say what will come: the stage."""
        stage = tw.let(step % self.stages)
        tw.hopper.wait(self.empty[stage], 1 - step // self.stages % 2)
        tw.hopper.arrive(self.full[stage], expect_bytes=expected)
        return stage

    def wait(self, step: Any) -> Any:
        """Wait until a stage is full: the stage."""
        stage = tw.let(step % self.stages)
        tw.hopper.wait(self.full[stage], step // self.stages % 2)
        return stage

    def release(self, step: Any) -> None:
        """Let every block that fills this stage fill it again."""
        empty = self.empty[step % self.stages]
        if self.cluster == (1, 1):
            tw.hopper.arrive(empty, each="warp")
            return
        (across, along), (row, column) = self.cluster, self.place
        for i in tw.unroll(across):
            tw.hopper.arrive(empty, each="warp", block=((row + i) % across, column))
        for j in tw.unroll(along - 1):
            tw.hopper.arrive(empty, each="warp", block=(row, (column + 1 + j) % along))


def issue(form: Form, ring: Ring, a: Operand, b: Operand, g: Any, step: Any, sums: Any, fresh: Any) -> None:
    """Begin to multiply a stage; at most ``pending`` groups are left unfinished."""
    stage = ring.wait(tw.let(step))
    tw.hopper.mma_fence()
    left, right = a.part(stage, g, form.rows), b.part(stage, 0, form.columns)
    tw.hopper.mma_async(left, right, sums, fresh=fresh)
    tw.hopper.mma_commit()
    tw.hopper.mma_wait(form.pending)


def multiply(form: Form, mma: Any, ring: Ring, a: Operand, b: Operand, g: Any, base: Any, steps: Any) -> Any:
    """The main loop of one tile; what gives the sums back once all is multiplied."""
    if form.partials == 2:
        return multiply_in_turns(form, mma, ring, a, b, g, base, steps)
    sums = tw.accumulator(mma, None if form.fresh and form.period == 1 else 0)
    total = tw.accumulator(mma) if form.period else sums
    for k in tw.range(steps, provenance="mainloop"):
        begins = k % form.period == 0 if form.period else k == 0
        fresh = form.fresh and (form.period == 1 or begins)
        issue(form, ring, a, b, g, base + k, sums, fresh)
        with tw.when(k >= form.pending):
            ring.release(base + k - form.pending)
        if form.period:
            with tw.when((k + 1) % form.period == 0):
                tw.hopper.mma_wait(0)
                total.assign(total + sums)
                if not form.fresh:
                    tw.fill(sums, 0)

    def finished() -> Any:
        tw.hopper.mma_wait(0)
        for i in tw.unroll(form.pending):
            with tw.when(steps > i):
                ring.release(base + steps - 1 - i)
        if form.period and form.period > 1:
            with tw.when(steps % form.period > 0):
                total.assign(total + sums)
        return total

    return finished


def multiply_in_turns(
    form: Form, mma: Any, ring: Ring, a: Operand, b: Operand, g: Any, base: Any, steps: Any
) -> Any:
    """The main loop with two partial sums: one is added to the total while the other is multiplied."""
    total, sums = tw.accumulator(mma), [tw.accumulator(mma, None, name=f"sums{i}") for i in range(2)]

    def step(k: Any, i: int) -> None:
        issue(form, ring, a, b, g, base + k, sums[i], True)
        with tw.when(k > 0):
            ring.release(base + k - 1)
            total.assign(total + sums[1 - i])

    for pair in tw.range(steps // 2, provenance="mainloop"):
        step(2 * pair, 0)
        step(2 * pair + 1, 1)
    with tw.when(steps % 2 > 0):
        step(steps - 1, 0)

    def finished() -> Any:
        tw.hopper.mma_wait(0)
        with tw.when(steps > 0):
            ring.release(base + steps - 1)
        with tw.when(steps % 2 > 0):
            total.assign(total + sums[0])
        with tw.otherwise(), tw.when(steps > 0):
            total.assign(total + sums[1])
        return total

    return finished


def store(C: Any, sC: Any, total: Any, form: Form, g: Any, row: Any, column: Any, finish: Any) -> None:
    """C leaves in panels, from registers or through buffers of shared memory."""
    panel = form.panel(C.dtype)
    pieces = form.columns // panel
    by_tma = form.buffers and C.shape[1] * C.dtype.bytes % 16 == 0
    at = row // form.rows, column // panel

    def part(j: int) -> Any:
        return finish(total[:, j * panel : (j + 1) * panel], at[0], at[1] + j)

    def write(j: int, buffer: Any) -> None:
        """In slices, so that few values are between two forms at once."""
        if finish is plainly:
            tw.copy(part(j), buffer)
            return
        for i in range(panel // form.slice):
            where = j * panel // form.slice + i
            sums = total[:, where * form.slice : (where + 1) * form.slice]
            tw.copy(finish(sums, at[0], column // form.slice + where), buffer.tile(sums.shape, (0, i)))

    def target(j: int) -> Any:
        return C.tile((form.rows, panel), (at[0], at[1] + j))

    for first in range(0, pieces, form.batch):
        batch = range(first, min(first + form.batch, pieces))
        if by_tma is not True:
            for j in batch:
                tw.copy(part(j), target(j))
            continue
        tw.hopper.bulk_wait(form.buffers // form.batch - 1)  # the stores of these buffers have read them
        tw.role_barrier(1 + g, threads=WARPS * 32)
        for j in batch:
            write(j, sC[g, j % form.buffers])
        tw.hopper.fence_async()
        tw.role_barrier(1 + g, threads=WARPS * 32)
        for j in batch:
            tw.hopper.tma_store(sC[g, j % form.buffers], target(j))
        tw.hopper.bulk_commit()


def plainly(part: Any, row: Any, column: Any) -> Any:
    """The sums as they are."""
    return part


def gemm(A: Any, B: Any, C: Any, along: str, form: Form, finish: Callable[..., Any] = plainly) -> None:
    """The kernel: ``along`` names the operands that lie along M or N instead of along K."""
    mma = tw.TiledMma(tw.atoms.wgmma(A.dtype, form.columns), (1, 1), (form.rows // 64, 1))
    tile_m, tile_n = form.tile
    across, beside = form.cluster
    tiles = tuple(tw.ceil_div(C.shape, (tile_m * across, tile_n * beside)))  # of a cluster
    count, most = tiles[0] * tiles[1], form.processors // (across * beside)
    clusters = count
    if form.persistent and form.even:
        clusters = tw.derived(tw.ceil_div(count, tw.maximum(tw.ceil_div(count, most), 1)))
    elif form.persistent:
        clusters = tw.derived(tw.minimum(count, most))
    if form.cluster == (1, 1):
        first, place = tw.block_index(clusters), (0, 0)
    else:
        block = tw.block_index((clusters * across, beside))
        place = tw.hopper.cluster_index(form.cluster)
        first = tw.let(block[0] // across)

    a = Operand.of(A, tile_m, form.stages, "m" in along, "sA")
    b = Operand.of(B, tile_n, form.stages, "n" in along, "sB")
    panel = form.panel(C.dtype)
    sC = None
    if form.buffers:
        shape = (form.groups, form.buffers, form.rows, panel)
        sC = tw.shared(shape, C.dtype, swizzle=panel * C.dtype.bytes)
    ring = Ring.of(form, place)
    done = tw.hopper.mbarrier(2, arrivals=WARPS) if form.pingpong else None
    tw.barrier() if form.cluster == (1, 1) else tw.hopper.cluster_barrier()

    steps = tw.ceil_div(a.extent_k, ROW_BYTES // A.dtype.bytes)
    turns = tw.ceil_div(count - first, clusters) if form.persistent else 1

    def each(turns: Any) -> Any:
        return tw.range(turns) if form.persistent else range(1)

    def tile_of(turn: Any) -> tuple[Any, Any]:
        """The first row and column of this block's tile."""
        index = tw.let(first + turn * clusters)
        m, n = tile_order(index, tiles, form)
        return (m * across + place[0]) * tile_m, (n * beside + place[1]) * tile_n

    def produce() -> None:
        for turn in each(turns):
            row, column = tile_of(turn)
            for k in tw.range(steps):
                stage = ring.acquire(tw.let(turn * steps + k), a.bytes + b.bytes)
                a.load(stage, row, k, ring.full[stage], beside, place[1], 1 if beside > 1 else ())
                b.load(stage, column, k, ring.full[stage], across, place[0], 0 if across > 1 else ())

    def consume(g: Any) -> None:
        for turn in each(turns):
            row, column = tile_of(turn)
            finished = multiply(form, mma, ring, a, b, g, turn * steps, steps)
            store(C, sC, finished(), form, g, row + g * form.rows, column, finish)

    def consume_in_turns(w: Any) -> None:
        for pair in tw.range((turns + 1 - w) // 2):
            turn = tw.let(pair * 2 + w)
            row, column = tile_of(turn)
            tw.hopper.wait(done[1 - w], (pair + 1 - w) % 2)  # the other has issued all of its tile
            finished = multiply(form, mma, ring, a, b, 0, turn * steps, steps)
            tw.hopper.arrive(done[w], each="warp")
            store(C, sC, finished(), form, w, row, column, finish)

    loading, multiplying = form.registers or (None, None)
    if form.registers:
        with tw.role(warps=WARPS, registers=loading), tw.role(warps=1):
            produce()
    with tw.role(warps=WARPS, groups=form.groups, registers=multiplying) as g:
        consume_in_turns(g) if form.pingpong else consume(g)
        if form.buffers:
            tw.hopper.bulk_wait(0)
    if not form.registers:
        with tw.role(warps=1):
            produce()
    if form.cluster != (1, 1):
        tw.hopper.cluster_barrier()  # no block ends while another one still arrives at its barriers


DIMENSIONS = {"": ("M K", "N K"), "n": ("M K", "K N"), "m": ("K M", "N K"), "mn": ("K M", "K N")}
"""The operands that lie along M or N -> how A and B are stored."""


def _plain(along: str) -> Any:
    a, b = DIMENSIONS[along]

    @tw.kernel(A=a, B=b, C="M N")
    def hopper_form(A, B, C, *, form):
        gemm(A, B, C, along, form)

    return hopper_form


PLAIN = {along: _plain(along) for along in DIMENSIONS}


def gelu(x: Any) -> Any:
    """`x / (1 + exp(-2 * sqrt(2 / pi) * (x + 0.044715 * x**3)))`: GELU by the tanh."""
    return x / (tw.exp2(x * (x * x * -0.10294324) + x * -2.3022082) + 1.0)


@tw.kernel(A="M K", B="N K", BIAS="N", C="M N")
def bias_gelu(A, B, BIAS, C, *, form):
    """C = gelu(A Bᵀ + bias)."""

    def finish(part: Any, row: Any, column: Any) -> Any:
        bias = tw.load(BIAS.broadcast(0, C.shape[0]).tile(part.shape, (row, column)), part)
        return gelu(part + bias.to(tw.f32))

    gemm(A, B, C, "", form, finish)


@tw.kernel(A="M K", B="N K", R="M N", C="M N")
def residual(A, B, R, C, *, form):
    """C = A Bᵀ + R."""

    def finish(part: Any, row: Any, column: Any) -> Any:
        return part + tw.load(R.tile(part.shape, (row, column)), part).to(tw.f32)

    gemm(A, B, C, "", form, finish)
