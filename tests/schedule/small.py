"""Dataflow kernels and small schedules of every form, for tests that execute many on the reference."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from tests.eight_lines import product

import tilewright as tw
from tilewright.checking.compare import Accumulation
from tilewright.checking.flows import StoredComparison, compare_flow
from tilewright.dtypes import dtype
from tilewright.runtime.kernel import Bound, Kernel
from tilewright.runtime.reference import PreparedReference
from tilewright.schedule.schedule import Schedule
from tilewright.targets.reference import Report

from .small_flows import (
    batched,
    chosen_rows,
    decoded,
    grouped,
    normalised,
    residual,
    row_sums,
    scattered_rows,
    shifted,
    two_loops,
    two_results,
)

Array = np.ndarray[Any, Any]
STORED = ("C", "D", "total")
"""Arrays that kernels store and do not read."""


SYNC = Schedule(tw.atoms.MMA_F16, (32, 32, 16), warps=(2, 1))
CP_ASYNC = replace(SYNC, stages=3, staging="cp_async")
FRAGMENTS = replace(SYNC, tile=(32, 32, 32), stages=3, staging="fragments")
IN_TURNS = replace(
    SYNC, tile=(128, 32, 16), warps=(4, 1), stages=2, staging="registers", roles="alternating", groups=2
)
WGMMA = Schedule(tw.atoms.wgmma("f16", 64), (64, 64, 64))
COOPERATIVE = replace(
    WGMMA,
    tile=(128, 64, 64),
    stages=3,
    staging="tma",
    roles="cooperative",
    groups=2,
    blocks=1,
    group_m=2,
    epilogue="staged",
)
PING_PONG = replace(COOPERATIVE, tile=(64, 64, 64), roles="ping-pong")


@dataclass(frozen=True)
class Case:
    """A kernel under a schedule, on arrays of some dtypes and layouts.

    Args:
        schedule: the schedule.
        kernel: the kernel.
        layout: a letter each for A and B of the product (M, K) @ (K, N): ``"n"`` row by row.
        kinds: dtypes by name of the parameter; f16 for operands, else f32.
        tiles: number of tiles along M and N; all but the last are whole.
        batches: batch items, for kernels that have them.
        edge: elements cut off the last tile along N; bulk copies store only whole units of 16 bytes.
        each: steps along K of each part; 0: two rounds of the ring, and one more step.
    """

    schedule: Schedule
    kernel: Kernel = product
    layout: str = "nt"
    kinds: tuple[tuple[str, str], ...] = ()
    tiles: tuple[int, int] = (1, 2)
    batches: int = 2
    edge: int = 24
    each: int = 0

    @property
    def bound(self) -> Bound:
        """The kernel under its schedule."""
        return self.kernel.bind(schedule=self.schedule)

    @property
    def turns(self) -> int:
        """Return steps along K, in each part of K, that fill a ring twice and take one more step."""
        splits = self.schedule.split_k
        return (self.each or 2 * self.schedule.stages + 1) * (splits if isinstance(splits, int) else 3)

    @property
    def counts(self) -> tuple[int, ...]:
        """Return numbers of steps along K: many, one, none; each tile restarts a ring, so all ends occur."""
        ends = self.schedule.stages if self.schedule.blocks and self.schedule.staging != "tma" else 1
        return (*range(self.turns, self.turns + ends), 1, 0)

    def shape(self, steps: int) -> tuple[int, int, int]:
        """Extents of a number of tiles and steps, each cut by an edge, unless the schedule gives them."""
        m, n, k = self.schedule.tile
        rows, columns = self.tiles
        if self.schedule.swap_ab:
            return columns * n - 3, rows * m - self.edge, max(steps * k - 8, 0)
        cuts = {"m": 27, "n": self.edge, "k": 8} | dict.fromkeys(self.schedule.whole, 0)
        return rows * m - cuts["m"], columns * n - cuts["n"], max(steps * k - cuts["k"], 0)

    def arrays(self, shape: tuple[int, int, int], seed: int = 0) -> dict[str, Array]:
        """Return random arrays by name; results hold NaN, or another wrong value."""
        rng = np.random.default_rng(seed)
        m, n, k = shape
        extents = {"L": self.batches, "M": m, "N": n, "K": k, "R": max(k - 2, 0)}
        kinds = dict(self.kinds)
        made = {}
        for parameter in self.kernel.program.parameters:
            name = parameter.name
            usual = dict.fromkeys("ABPQ", "f16") | dict.fromkeys(("ends", "rows"), "i32")
            kind = dtype(kinds.get(name, usual.get(name, "f32")))
            dims = [extents[dim] for dim in parameter.dims or ()]
            column = {"A": self.layout[0] == "t", "B": self.layout[1] == "n"}.get(name, False)
            made[name] = in_rows(dims, kind, column)
            if name == "ends":
                made[name][...] = ends(m, self.batches)
            elif name == "rows":
                made[name][...] = rng.permutation(m)
            elif kind.is_float:
                made[name][...] = np.nan if name in STORED else rng.standard_normal(dims).astype(kind.numpy)
            else:
                made[name][...] = 99 if name in STORED else rng.integers(-4, 5, dims)
        return made

    def executed(self, arrays: Mapping[str, Array]) -> Report:
        """Execute on the reference like a launch, which checks every access; return its report."""
        given = tuple(arrays.values())
        prepared = self.bound.planned(given, "reference")[0].prepared
        assert isinstance(prepared, PreparedReference)
        return prepared.run(given)

    def compare(self, arrays: Mapping[str, Array]) -> StoredComparison:
        """Return whether the stored results are right."""
        stored = {name: array for name, array in arrays.items() if name in STORED}
        given = {name: array for name, array in arrays.items() if name not in STORED}
        period = self.schedule.promote * self.schedule.block_k or None
        how = Accumulation.of(self.schedule.atom, period)
        return compare_flow(self.kernel.flow(*arrays.values()), stored, given, how=how)


def ends(rows: int, groups: int) -> Array:
    """Return ends of groups of very different sizes, one of them empty."""
    begins = np.cumsum([1, 7, 0, 40, 2, 9] * -(-groups // 6))[:groups]
    return np.asarray([*np.minimum(begins, rows)[:-1], rows], np.int32)


def in_rows(shape: list[int], kind: tw.DType, column: bool = False) -> Array:
    """Return an array whose rows, or columns, begin at multiples of 16 bytes, as bulk copies need."""
    unit = max(16 // kind.bytes, 1)
    order = [*shape[:-2], *reversed(shape[-2:])] if column else list(shape)
    if len(order) < 2:
        return np.empty(shape, kind.numpy)
    whole = np.zeros((*order[:-1], max(-(-order[-1] // unit), 1) * unit), kind.numpy)
    part = whole[..., : order[-1]]
    return part.swapaxes(-1, -2) if column else part


ONCE = replace(COOPERATIVE, blocks=0, registers=0)
FEW_ROWS = replace(
    ONCE, atom=tw.atoms.wgmma("f16", 8), tile=(64, 8, 128), groups=1, group_m=0, buffers=1, swap_ab=True
)
"""Columns of the result fill the atom, of which 8 rows are enough."""
DECODED = replace(
    COOPERATIVE, atom=tw.atoms.wgmma("f16", 16), tile=(128, 16, 128), stages=2, buffers=1, swap_ab=True
)
"""The columns of the result fill the atom, whose operand A is made of B on its way."""
SPLIT = replace(CP_ASYNC, split_k=3)
SCATTERED = replace(ONCE, split_k=2, epilogue="direct", reduction="reduce-scatter")

CASES = {
    "direct": Case(SYNC, edge=19),
    "registers": Case(replace(SYNC, staging="registers")),
    "double": Case(replace(SYNC, stages=2, staging="double"), edge=19),
    "double, blocks that stay, staged": Case(
        replace(SYNC, stages=3, staging="double", blocks=2, group_m=2, epilogue="staged", prefetch=False),
        residual,
        tiles=(3, 2),
    ),
    "registers, A past shared memory": Case(
        replace(SYNC, staging="registers", bypass="a", blocks=2, group_m=2), tiles=(3, 2), edge=19
    ),
    "registers, K1 together": Case(
        replace(SYNC, staging="registers", k1=(8, 4), extra_rows=(1, 0), dealt=((32, 2), (0, 0))), edge=19
    ),
    "registers, B turned around": Case(
        replace(SYNC, staging="registers", k1=(0, 8), dealt=((0, 0), (16, 4)), turned="b"),
        layout="nn",
        edge=19,
    ),
    "registers, decoded": Case(replace(SYNC, staging="registers"), decoded, kinds=(("B", "i8"),)),
    "registers, decoded and turned around": Case(
        replace(SYNC, staging="registers", k1=(8, 8), dealt=((0, 0), (16, 4)), turned="b"),
        shifted,
        layout="nn",
    ),
    "registers, warps in turns, staged in slices": Case(
        replace(
            SYNC, tile=(64, 64, 16), warps=(2, 2), staging="registers", epilogue="staged", interleaved=True
        ),
        residual,
        edge=19,
    ),
    "direct, warps in turns, one buffer": Case(
        replace(SYNC, tile=(32, 96, 16), epilogue="staged", interleaved=True, buffers=1), tiles=(2, 1)
    ),
    "registers, in turns": Case(IN_TURNS),
    "registers, in turns, persistent, B turned around": Case(
        replace(IN_TURNS, blocks=2, promote=2, k1=(8, 8), dealt=((64, 2), (8, 16)), turned="b"),
        layout="nn",
        tiles=(3, 2),
    ),
    "registers, in turns, staged in slices": Case(
        replace(IN_TURNS, tile=(128, 64, 16), warps=(2, 2), epilogue="staged", interleaved=True), batched
    ),
    "registers, whole tiles": Case(replace(SYNC, staging="registers", whole="mnk"), residual),
    "cp_async, whole columns": Case(replace(CP_ASYNC, whole="n"), batched),
    "cp_async, K1 together": Case(
        replace(CP_ASYNC, k1=(8, 8), extra_rows=(0, 1), dealt=((0, 0), (32, 2))), layout="nn"
    ),
    "fragments, K1 together": Case(replace(FRAGMENTS, k1=(8, 16), extra_rows=(1, 1))),
    "registers, B past shared memory": Case(
        replace(SYNC, staging="registers", bypass="b", epilogue="staged"), residual, layout="tn"
    ),
    "registers, A and B past shared memory": Case(
        replace(SYNC, staging="registers", bypass="ab", blocks=1, group_m=1, promote=2), tiles=(1, 3)
    ),
    "registers, A past shared memory, transposed": Case(
        replace(SYNC, staging="registers", bypass="a", swap_ab=True), batched
    ),
    "cp_async": Case(CP_ASYNC, edge=19),
    "cp_async, two stages": Case(replace(CP_ASYNC, stages=2)),
    "cp_async, chosen rows": Case(CP_ASYNC, chosen_rows, tiles=(2, 1)),
    "wgmma, cp_async, chosen rows, staged": Case(
        replace(WGMMA, stages=3, staging="cp_async", epilogue="staged", blocks=1, group_m=1),
        chosen_rows,
        tiles=(3, 1),
    ),
    "mixed, chosen rows": Case(replace(COOPERATIVE, staging="mixed"), chosen_rows, tiles=(3, 1)),
    "mixed, chosen rows, ping-pong": Case(replace(PING_PONG, staging="mixed"), chosen_rows, tiles=(2, 3)),
    "mixed, chosen rows, four stages of a cluster": Case(
        replace(COOPERATIVE, staging="mixed", stages=4, cluster=(2, 1), blocks=2), chosen_rows, tiles=(6, 1)
    ),
    "cooperative, scattered rows": Case(COOPERATIVE, scattered_rows, tiles=(3, 1)),
    "cp_async, promoted": Case(replace(CP_ASYNC, promote=2)),
    "cp_async, persistent": Case(replace(CP_ASYNC, blocks=2, group_m=2), tiles=(3, 2)),
    "cp_async, bands of columns": Case(replace(CP_ASYNC, group_n=2, unroll=2), tiles=(2, 2)),
    "cp_async, batches": Case(CP_ASYNC, batched),
    "cp_async, persistent batches": Case(replace(CP_ASYNC, blocks=1, group_m=1), batched),
    "cp_async, staged": Case(replace(CP_ASYNC, epilogue="staged"), residual, edge=19),
    "cp_async, staged, persistent": Case(
        replace(CP_ASYNC, epilogue="staged", blocks=1, group_m=1), residual, tiles=(1, 3)
    ),
    "cp_async, two results": Case(CP_ASYNC, two_results),
    "cp_async, row sums": Case(CP_ASYNC, row_sums, tiles=(2, 1)),
    "direct, several batch items": Case(replace(SYNC, batches=3), batched, batches=4),
    "registers, several batch items": Case(
        replace(SYNC, staging="registers", batches=3), batched, batches=4, tiles=(1, 1)
    ),
    "cp_async, several batch items": Case(
        replace(CP_ASYNC, epilogue="staged", batches=3, group_m=2), batched, batches=4
    ),
    "fragments": Case(FRAGMENTS),
    "fragments, persistent": Case(replace(FRAGMENTS, blocks=1, group_m=1), tiles=(3, 1)),
    "fragments, decoded": Case(FRAGMENTS, decoded, kinds=(("B", "i8"),)),
    "fragments, decoded in two stages": Case(
        replace(FRAGMENTS, stages=2, tile=(32, 32, 64), blocks=1, group_m=1),
        decoded,
        kinds=(("B", "i8"),),
        tiles=(1, 3),
    ),
    "split": Case(replace(SYNC, split_k=3), residual, edge=19),
    "split, turnstile": Case(replace(SPLIT, reduction="turnstile"), tiles=(2, 1)),
    "split, atomic": Case(replace(SPLIT, reduction="atomic"), two_results),
    "split, reduce-scatter": Case(replace(SPLIT, reduction="reduce-scatter"), residual, tiles=(2, 1)),
    "split, reduce-scatter, auto": Case(
        replace(SPLIT, split_k="auto", blocks=8, reduction="reduce-scatter"), tiles=(1, 3)
    ),
    "split, reduce-scatter of row sums": Case(
        replace(SPLIT, reduction="reduce-scatter"), row_sums, tiles=(2, 1)
    ),
    "split, many": Case(replace(SYNC, split_k=25)),
    "split, batches": Case(replace(SPLIT, group_m=2), batched),
    "split, row sums": Case(replace(SPLIT, epilogue="staged"), row_sums, tiles=(2, 1)),
    "split, auto": Case(replace(SPLIT, split_k="auto", blocks=8), tiles=(1, 3)),
    "split, balanced": Case(replace(SYNC, split_k=2, balanced=True)),
    "split, stream": Case(
        replace(SPLIT, split_k="stream", blocks=3, epilogue="staged"), residual, tiles=(2, 4)
    ),
    "split, stream of batches": Case(
        replace(SPLIT, split_k="stream", blocks=3, reduction="atomic"), batched, tiles=(2, 2)
    ),
    "wgmma, direct": Case(WGMMA, edge=19),
    "wgmma, registers": Case(replace(WGMMA, staging="registers")),
    "wgmma, cp_async": Case(replace(WGMMA, stages=3, staging="cp_async")),
    "wgmma, cp_async, two stages": Case(replace(WGMMA, stages=2, staging="cp_async")),
    "wgmma, cp_async, persistent": Case(
        replace(WGMMA, stages=3, staging="cp_async", blocks=1, group_m=1), tiles=(1, 3)
    ),
    "cooperative": Case(replace(COOPERATIVE, blocks=2), tiles=(3, 2)),
    "cooperative, direct": Case(replace(COOPERATIVE, epilogue="direct"), tiles=(1, 3)),
    "deep slices": Case(replace(COOPERATIVE, tile=(128, 128, 128), stages=2, promote=1), tiles=(1, 3)),
    "cooperative, promoted": Case(replace(COOPERATIVE, promote=2, unroll=3), tiles=(1, 3)),
    "cooperative, one buffer": Case(replace(COOPERATIVE, buffers=1), residual, tiles=(1, 3)),
    "cooperative, once": Case(ONCE),
    "cooperative, batches": Case(COOPERATIVE, batched, tiles=(1, 2)),
    "cooperative, columns": Case(COOPERATIVE, layout="tn", tiles=(1, 3)),
    "cooperative, odd columns": Case(COOPERATIVE, residual, tiles=(1, 3), edge=19),
    "cooperative, two results": Case(COOPERATIVE, two_results, tiles=(1, 3)),
    "cooperative, row sums": Case(COOPERATIVE, row_sums, tiles=(3, 1)),
    "cooperative, overlapped": Case(replace(COOPERATIVE, epilogue="overlapped"), tiles=(1, 3)),
    "cooperative, overlapped, residual": Case(
        replace(COOPERATIVE, epilogue="overlapped", buffers=1), residual, tiles=(1, 3)
    ),
    "cooperative, 2 x 1": Case(replace(COOPERATIVE, cluster=(2, 1), blocks=2), tiles=(2, 3)),
    "cooperative, 1 x 2": Case(replace(COOPERATIVE, cluster=(1, 2), blocks=2), tiles=(3, 2)),
    "cooperative, 2 x 2": Case(replace(COOPERATIVE, cluster=(2, 2), blocks=4), tiles=(2, 6)),
    "cooperative, 2 x 1, once": Case(replace(ONCE, cluster=(2, 1))),
    "cooperative, 2 x 1, multiplied by warps": Case(
        replace(ONCE, atom=tw.atoms.MMA_F16, warps=(2, 2), cluster=(2, 1), epilogue="direct"), tiles=(2, 1)
    ),
    "cooperative, split": Case(replace(ONCE, split_k=2), residual),
    "cooperative, split, turnstile": Case(replace(ONCE, split_k=2, reduction="turnstile")),
    "cooperative, split, reduce-scatter": Case(SCATTERED, residual),
    "cooperative, split, atomic": Case(replace(ONCE, split_k=2, reduction="atomic", promote=2)),
    "cooperative, 2 x 1, split": Case(replace(ONCE, cluster=(2, 1), split_k=2), residual),
    "cooperative, 1 x 2, split, turnstile": Case(
        replace(ONCE, cluster=(1, 2), split_k=3, epilogue="direct", reduction="turnstile"), tiles=(1, 3)
    ),
    "cooperative, 2 x 1, split, reduce-scatter": Case(replace(SCATTERED, cluster=(2, 1)), residual),
    "cooperative, 2 x 2, split, auto": Case(
        replace(SCATTERED, tile=(64, 64, 64), groups=1, cluster=(2, 2), blocks=16, split_k="auto"),
        tiles=(3, 1),
    ),
    "cooperative, stream": Case(replace(COOPERATIVE, split_k="stream", blocks=2), tiles=(5, 1)),
    "cooperative, several batch items": Case(
        replace(ONCE, batches=3, epilogue="overlapped"),
        batched,
        kinds=(("C", "f16"),),
        batches=4,
        tiles=(1, 1),
    ),
    "ping-pong": Case(PING_PONG, tiles=(2, 3)),
    "ping-pong, promoted": Case(replace(PING_PONG, promote=1), tiles=(2, 3)),
    "ping-pong, residual": Case(PING_PONG, residual, tiles=(2, 3)),
    "ping-pong, overlapped": Case(replace(PING_PONG, epilogue="overlapped"), residual, tiles=(2, 3)),
    "two loops, registers": Case(replace(SYNC, staging="registers"), two_loops, edge=19),
    "two loops, double, persistent": Case(
        replace(SYNC, stages=3, staging="double", blocks=2, group_m=2), two_loops, tiles=(3, 2)
    ),
    "two loops, in turns": Case(IN_TURNS, two_loops, layout="nn"),
    "two loops, cp_async, persistent": Case(replace(CP_ASYNC, blocks=2, group_m=2), two_loops, tiles=(3, 2)),
    "two loops, fragments": Case(FRAGMENTS, two_loops),
    "two loops, fragments, other layouts": Case(FRAGMENTS, two_loops, layout="tn"),
    "two loops, split": Case(replace(SPLIT, reduction="turnstile"), two_loops, tiles=(2, 1)),
    "two loops, stream": Case(replace(SPLIT, split_k="stream", blocks=3), two_loops, tiles=(2, 4)),
    "two loops, wgmma, cp_async": Case(replace(WGMMA, stages=3, staging="cp_async"), two_loops),
    "two loops, cooperative": Case(replace(COOPERATIVE, blocks=2), two_loops, tiles=(3, 2)),
    "two loops, cooperative, promoted": Case(
        replace(COOPERATIVE, promote=2), two_loops, layout="tn", tiles=(1, 3)
    ),
    "two loops, cooperative, 2 x 1, split": Case(replace(SCATTERED, cluster=(2, 1)), two_loops),
    "two loops, ping-pong, swapped": Case(
        replace(PING_PONG, swap_ab=True, epilogue="overlapped"), two_loops, tiles=(2, 3)
    ),
    "rows added up, registers": Case(replace(SYNC, staging="registers"), normalised, edge=19),
    "rows added up, in turns": Case(IN_TURNS, normalised),
    "rows added up, cp_async, persistent": Case(
        replace(CP_ASYNC, blocks=2, group_m=2), normalised, layout="tn", tiles=(3, 2)
    ),
    "rows added up, fragments": Case(FRAGMENTS, normalised),
    "rows added up, wgmma, cp_async": Case(replace(WGMMA, stages=3, staging="cp_async"), normalised),
    "rows added up, cooperative": Case(replace(COOPERATIVE, blocks=2), normalised, tiles=(3, 2)),
    "rows added up, cooperative, 1 x 2": Case(
        replace(COOPERATIVE, cluster=(1, 2), blocks=2, promote=2), normalised, tiles=(3, 2)
    ),
    "rows added up, ping-pong, swapped": Case(
        replace(PING_PONG, swap_ab=True, epilogue="overlapped"), normalised, tiles=(2, 3)
    ),
    "swapped, direct": Case(replace(SYNC, swap_ab=True), two_results, edge=19),
    "swapped, cp_async, staged": Case(
        replace(CP_ASYNC, epilogue="staged", swap_ab=True), residual, layout="nn", edge=19
    ),
    "swapped, fragments, decoded": Case(
        replace(FRAGMENTS, swap_ab=True), decoded, kinds=(("B", "i8"),), tiles=(1, 2)
    ),
    "swapped, few rows": Case(FEW_ROWS, layout="nn", tiles=(2, 1)),
    "swapped, few rows, odd columns": Case(replace(FEW_ROWS, stages=2), residual, tiles=(2, 2), edge=19),
    "swapped, cp_async, row sums": Case(replace(CP_ASYNC, swap_ab=True), row_sums, tiles=(1, 2)),
    "swapped, overlapped, residual": Case(
        replace(
            COOPERATIVE,
            atom=tw.atoms.wgmma("f16", 16),
            tile=(128, 16, 64),
            epilogue="overlapped",
            swap_ab=True,
        ),
        residual,
        tiles=(3, 1),
    ),
    "decoded in bulk": Case(DECODED, decoded, kinds=(("B", "f8e4m3"),), tiles=(3, 1)),
    "decoded in bulk, promoted": Case(
        replace(DECODED, tile=(64, 16, 256), groups=1, promote=2),
        decoded,
        kinds=(("B", "f8e4m3"),),
        tiles=(3, 1),
    ),
    "decoded in bulk, once, deep steps": Case(
        replace(DECODED, tile=(64, 16, 256), groups=1, blocks=0, registers=0),
        decoded,
        kinds=(("B", "i8"),),
        tiles=(2, 1),
        edge=19,
    ),
    "decoded in bulk, columns": Case(
        replace(DECODED, tile=(256, 16, 128), registers=0, blocks=0),
        decoded,
        layout="nn",
        kinds=(("B", "f8e5m2"),),
    ),
    "decoded in bulk, cut": Case(
        replace(DECODED, swap_ab=False, epilogue="direct"), shifted, tiles=(1, 3), edge=3
    ),
    "decoded in bulk, ping-pong": Case(
        replace(DECODED, tile=(64, 16, 128), roles="ping-pong"), decoded, kinds=(("B", "i8"),), tiles=(5, 1)
    ),
    "decoded in bulk, 2 x 1, split": Case(
        replace(DECODED, tile=(64, 16, 128), groups=1, blocks=0, cluster=(2, 1), split_k=2),
        decoded,
        kinds=(("B", "f8e4m3"),),
    ),
    "groups": Case(replace(SYNC, warps=(1, 2)), grouped, batches=6, tiles=(3, 2), edge=19),
    "groups, registers, columns": Case(
        replace(SYNC, staging="registers"), grouped, layout="tn", batches=6, tiles=(3, 1)
    ),
    "groups, cp_async, persistent": Case(
        replace(CP_ASYNC, blocks=2, group_m=2, epilogue="staged"), grouped, batches=6, tiles=(3, 2)
    ),
    "groups, registers, in turns": Case(IN_TURNS, grouped, batches=6, tiles=(3, 1), edge=19),
    "groups, fragments": Case(replace(FRAGMENTS, blocks=1, group_m=1), grouped, batches=5, tiles=(3, 1)),
    "groups, once": Case(ONCE, grouped, batches=4, tiles=(1, 2)),
    "groups, cooperative": Case(COOPERATIVE, grouped, batches=4, tiles=(1, 2)),
    "groups, overlapped": Case(
        replace(COOPERATIVE, epilogue="overlapped", blocks=2), grouped, batches=4, tiles=(1, 2)
    ),
    "groups, swapped": Case(FEW_ROWS, grouped, layout="nn", batches=6, tiles=(1, 5)),
    "ping-pong, 2 x 1": Case(replace(PING_PONG, cluster=(2, 1), blocks=2), tiles=(4, 3)),
}
"""Every form, each with several tiles, three or more for each block that takes one after the other."""
