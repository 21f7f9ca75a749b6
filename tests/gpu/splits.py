"""Products with every split of K, and of few rows, under the schedules of each engine, for a GPU."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import cycle, product
from typing import Any

from tests.gpu.schedules import Form, hopper, residual
from tests.gpu.schedules import product as plain

import tilewright as tw
from tilewright.schedule.fixup import FAN
from tilewright.schedule.schedule import REDUCTIONS, Schedule

SPLITS = (2, 7, FAN + 1, "auto", "stream")
"""Parts of K; of more than `FAN` the sums come together in two steps."""

OF_A_CLUSTER = (2, 7)
"""Parts whose blocks are a cluster."""

BLOCKS = 24
"""Among which K is dealt out: one tile then has more than `FAN` parts, four tiles have six each."""

LAYOUTS = ("nt", "nn", "tn", "tt")


@dataclass(frozen=True)
class SplitForm(Form):
    """A form with split K: deep shapes, and one with fewer steps than parts."""

    def fixed(self) -> tuple[tuple[int, int, int], ...]:
        """Four tiles, one tile of many parts, one step, fewer steps than parts."""
        m, n, k = self.schedule.tile
        if self.schedule.swap_ab:
            m, n = n, m
        depth = (4 * BLOCKS + 1) * k
        return (m + 5, n + 13, 2 * (FAN + 2) * k - 16), (m - 3, n, depth - 9), (1, n - 8, k), (m, n, 5 * k)


@dataclass(frozen=True)
class FewRows(SplitForm):
    """A form of the transposed product; it has at most as many rows as the atom has columns."""

    def fixed(self) -> tuple[tuple[int, int, int], ...]:
        """Few rows by two tiles of columns, and deep K."""
        columns, most, k = self.schedule.tile
        rows = [count for count in (1, 3, 16, 64) if count <= most]
        return tuple((count, 2 * columns - 8, (2 * FAN + 4) * k - 16) for count in rows)


ENGINES: dict[str, tuple[Schedule, str, str]] = {
    "cooperative": (hopper("f16", blocks=0, registers=0), "f16", "f16"),
    "cp_async": (
        Schedule(tw.atoms.MMA_BF16, (64, 64, 32), (2, 2), stages=3, staging="cp_async"),
        "bf16",
        "f32",
    ),
    "fma": (
        Schedule(tw.atoms.fma("f32", each=(4, 4)), (64, 64, 16), (2, 2), stages=3, staging="cp_async"),
        "f32",
        "f32",
    ),
}
"""By name: a schedule that does not split K, the dtype of A and B, and that of the result."""


def split_of(schedule: Schedule, split_k: int | str, reduction: str) -> Schedule:
    """Return a schedule with this split of K; its other fields come from another schedule."""
    blocks = BLOCKS if isinstance(split_k, str) else 0
    epilogue = "direct" if reduction == "reduce-scatter" else schedule.epilogue
    return replace(schedule, split_k=split_k, reduction=reduction, blocks=blocks, epilogue=epilogue)


def ways() -> Iterator[tuple[int | str, str]]:
    """Yield every way to split K, with every reduction that may follow."""
    for split_k, reduction in product(SPLITS, REDUCTIONS):
        refused = reduction == "cluster" and split_k not in OF_A_CLUSTER
        refused |= reduction == "turnstile" and split_k == "stream"
        # Blocks wait for each other: only of "auto" are there as many as run at once.
        refused |= reduction == "reduce-scatter" and split_k != "auto"
        if not refused:
            yield split_k, reduction


def split_forms() -> Iterator[SplitForm]:
    """Return every engine with every split; layouts and epilogues alternate, so that each engine has all."""
    for engine, (schedule, kind, out) in ENGINES.items():
        layouts, kernels = cycle(LAYOUTS), cycle((residual, plain, residual))
        for split_k, reduction in ways():
            made = split_of(schedule, split_k, reduction)
            name = f"{engine}, {split_k} parts, {reduction}"
            yield SplitForm(name, made, kind, out, next(kernels), (next(layouts),))


def few_row_forms() -> Iterator[FewRows]:
    """Yield the transposed product with the smallest atom for some rows, without and with split K."""
    splits: dict[int, tuple[tuple[int | str, str], ...]] = {
        8: ((1, "workspace"), ("auto", "reduce-scatter"), ("auto", "turnstile"), ("stream", "atomic")),
        16: ((1, "workspace"), (FAN + 1, "turnstile")),
        64: ((1, "workspace"), (FAN + 1, "workspace"), ("stream", "workspace")),
    }
    kernels: Any = cycle((residual, plain))
    for columns, found in splits.items():
        few = hopper("bf16", columns, tile=(64, columns, 128), groups=1, group_m=0, buffers=1)
        few = replace(few, swap_ab=True, registers=0, blocks=0)
        for split_k, reduction in found:
            name = f"{columns} rows, {split_k} parts, {reduction}"
            yield FewRows(name, split_of(few, split_k, reduction), "bf16", "bf16", next(kernels), LAYOUTS[:1])


SMALL: dict[str, tuple[tuple[int, int], tuple[int, int], tuple[int, int], tuple[int, int, int]]] = {
    "16 x 16": ((4, 8), (4, 2), (1, 1), (16, 16, 64)),
    "16 x 128": ((4, 8), (4, 4), (1, 4), (16, 128, 32)),
    "128 x 16": ((8, 4), (4, 4), (4, 1), (128, 16, 32)),
    "32 x 256": ((4, 8), (8, 8), (1, 4), (32, 256, 32)),
}
"""Small tiles by multiply-adds: lanes, elements of a lane, warps, and the tile."""


def small_tile_forms() -> Iterator[SplitForm]:
    """Yield small tiles of f32 with split K."""
    layouts, kernels = cycle(LAYOUTS), cycle((residual, plain))
    for (name, (lanes, each, warps, tile)), split_k in product(SMALL.items(), ("auto", "stream")):
        atom = tw.atoms.fma("f32", lanes=lanes, each=each, paired=True)
        whole = Schedule(atom, tile, warps, stages=3, staging="cp_async", group_m=8)
        made = split_of(whole, split_k, "workspace")
        about = f"small tiles of {name}, {split_k} parts"
        yield SplitForm(about, made, "f32", "f32", next(kernels), (next(layouts),))


def f64_forms() -> Iterator[SplitForm]:
    """Yield tensor cores for f64; registers hold operands one part ahead."""
    whole = Schedule(tw.atoms.MMA_F64_M16K4, (64, 64, 16), (2, 2), stages=3, staging="fragments", group_m=8)
    found: Any = ((2, "workspace"), ("auto", "reduce-scatter"), ("stream", "workspace"), (7, "cluster"))
    for (split_k, reduction), layout in zip(found, LAYOUTS, strict=True):
        made = split_of(whole, split_k, reduction)
        yield SplitForm(f"f64, {split_k} parts, {reduction}", made, "f64", "f64", plain, (layout,))


def cluster_forms() -> Iterator[SplitForm]:
    """Yield clusters whose blocks share operands and have the same part of K."""
    clusters: dict[tuple[int, int], tuple[tuple[int | str, str], ...]] = {
        (2, 1): (("auto", "reduce-scatter"), (7, "turnstile")),
        (1, 2): ((FAN + 1, "workspace"), ("auto", "atomic")),
        (2, 2): (("auto", "reduce-scatter"), ("auto", "workspace")),
    }
    layouts, kernels = cycle(LAYOUTS), cycle((residual, plain, residual))
    for cluster, found in clusters.items():
        whole = hopper("f16", 128, blocks=0, registers=0, cluster=cluster)
        for split_k, reduction in found:
            name = f"clusters of {cluster[0]} x {cluster[1]}, {split_k} parts, {reduction}"
            made = split_of(whole, split_k, reduction)
            yield SplitForm(name, made, "f16", "f16", next(kernels), (next(layouts),))


SPLIT_FORMS = {
    form.name: form
    for forms in (split_forms, few_row_forms, small_tile_forms, cluster_forms, f64_forms)
    for form in forms()
}
"""By name."""
