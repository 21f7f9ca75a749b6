"""Products under schedules of every form, with the dtypes and layouts of each, for a GPU."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from tests.eight_lines import product_of_rows as product

import tilewright as tw
from tilewright.checking.compare import Accumulation
from tilewright.checking.flows import StoredComparison, compare_flow
from tilewright.checking.sample import laid_out, normal
from tilewright.runtime.cuda import CUDA_DRIVER
from tilewright.runtime.gpu_memory import DeviceArray
from tilewright.schedule.schedule import Schedule

Array = np.ndarray[Any, Any]
ROW = 128
"""Bytes of a row of shared memory under the swizzle."""

F64 = ("f64", "f64")
"""Operands and result."""


@tw.kernel(A="M K", B="K N", C="M N")
def tf32_product(A, B, C):
    for m, n in tw.tiles(C):
        acc = tw.zeros(precision="tf32")
        for k in tw.steps(A.shape[1]):
            acc += A[m, k] @ B[k, n]
        C[m, n] = acc


@tw.kernel(A="M K", B="K N", C="M N", bias="N", R="M N")
def residual(A, B, C, bias, R):
    for m, n in tw.tiles(C):
        acc = tw.zeros()
        for k in tw.steps(A.shape[1]):
            acc += A[m, k] @ B[k, n]
        C[m, n] = tw.maximum(acc + bias[n], 0) + R[m, n]


@tw.kernel(A="M K", B="K N", C="M N")
def decoded(A, B, C):
    for m, n in tw.tiles(C):
        acc = tw.zeros()
        for k in tw.steps(A.shape[1]):
            acc += A[m, k] @ B[k, n].to(A.dtype)
        C[m, n] = acc


@dataclass(frozen=True)
class Form:
    """A schedule, and the problem that tests it.

    Args:
        name: name of the form and dtype.
        schedule: the schedule.
        kind: the dtype of A, and of B unless that is decoded.
        out: the dtype of C.
        kernel: the dataflow kernel.
        layouts: a letter each for A and B: ``"n"`` row by row.
    """

    name: str
    schedule: Schedule
    kind: str
    out: str
    kernel: Any = product
    layouts: tuple[str, ...] = ("nn", "nt", "tn", "tt")

    def __str__(self) -> str:
        return self.name

    def arrays(self, shape: tuple[int, int, int], layout: str, seed: int) -> dict[str, Array]:
        """Return random arrays by name; C holds wrong values."""
        rng = np.random.default_rng(seed)
        m, n, k = shape
        shapes = {"A": (m, k), "B": (k, n), "C": (m, n), "bias": (n,), "R": (m, n)}
        letters = dict(zip("AB", layout, strict=True))
        made = {}
        for parameter in self.kernel.program.parameters:
            name = parameter.name
            kind = tw.dtype("i8" if name == "B" and self.kernel is decoded else self.kind)
            kind = kind if name in "AB" else tw.dtype(self.out)
            made[name] = laid_out(normal(rng, shapes[name], kind), letters.get(name, "n"))
        made["C"][...] = np.nan if made["C"].dtype.kind not in "iu" else 99
        return made

    def run(self, arrays: dict[str, Array], target: str = "cuda") -> tuple[Any, dict[str, Array]]:
        """Launch on copies of the arrays; return the executable, and the arrays afterwards."""
        bound = self.kernel.bind(schedule=self.schedule)
        if target != "cuda":
            return bound(*arrays.values(), target=target), arrays
        there = {name: DeviceArray.of(array) for name, array in arrays.items()}
        ran = bound(*there.values())
        CUDA_DRIVER.synchronize()
        return ran, {name: array.host() for name, array in there.items()}

    def compare(self, before: dict[str, Array], after: dict[str, Array]) -> StoredComparison:
        """Compare C."""
        flow = self.kernel.flow(*before.values())
        period = self.schedule.promote * self.schedule.block_k or None
        given = {name: array for name, array in before.items() if name != "C"}
        return compare_flow(flow, {"C": after["C"]}, given, how=Accumulation.of(self.schedule.atom, period))

    def fixed(self) -> tuple[tuple[int, int, int], ...]:
        """Shapes that always run: several tiles with long rings, one row, nothing in K."""
        m, n, k = self.schedule.tile
        if self.schedule.swap_ab:
            m, n = n, m
        # Without K nothing says along what B is contiguous.
        least = 16 if len(self.layouts) == 1 else 0
        return (m + 5, n + 13, (2 * self.schedule.stages + 1) * k - 16), (1, 16, k), (3 * m, 2 * n, least)

    def shapes(self, count: int, layout: str) -> Iterator[tuple[int, int, int]]:
        """Draw ragged shapes: half of them with rows of 16 bytes, extents of 0 and 1, long rings."""
        draw = random.Random(f"{self.name} {layout}")
        drawn = ((draw.randint(1, 900), draw.randint(1, 900), draw.randint(1, 700)) for _ in range(count))
        for rows, columns, depth in (*self.fixed(), *drawn):
            wide = draw.random() < 0.5
            bulk = self.schedule.staging == "tma"  # which takes rows of whole 16 bytes
            along_m, along_n, along_k = bulk and layout[0] == "t", bulk and layout[1] == "n", bulk
            yield _whole(rows, along_m), _whole(columns, along_n or wide), _whole(depth, along_k)


def _whole(extent: int, asked: bool) -> int:
    """Return the extent, rounded up to a multiple of 16."""
    return -(-extent // 16) * 16 if asked else extent


def hopper(kind: str, columns: int = 64, **changes: Any) -> Schedule:
    """Return a schedule of a group that copies and two that multiply."""
    width = ROW // tw.dtype(kind).bytes
    made = Schedule(
        tw.atoms.wgmma(kind, columns),
        (128, columns, width),
        stages=3,
        staging="tma",
        roles="cooperative",
        groups=2,
        blocks=4,
        group_m=2,
        epilogue="staged",
    )
    return replace(made, **changes)


def forms() -> Iterator[Form]:
    """Yield every form, each with its dtypes."""
    plain = Schedule(tw.atoms.MMA_F16, (64, 64, 32), (2, 2))
    ring = replace(plain, stages=3, staging="cp_async")
    yield Form("direct f16", plain, "f16", "f32")
    yield Form("registers f16", replace(plain, staging="registers"), "f16", "f16")
    yield Form("double f16", replace(plain, stages=2, staging="double"), "f16", "f16")
    yield Form(
        "double f16, later epilogue",
        replace(plain, stages=2, staging="double", prefetch=False),
        "f16",
        "f16",
        residual,
    )
    past = replace(plain, staging="registers", bypass="a")
    yield Form("registers, A past shared memory", past, "f16", "f16")
    together = replace(plain, staging="registers", k1=(8, 8), extra_rows=(1, 1), dealt=((32, 4), (32, 4)))
    yield Form("registers, K1 together", together, "f16", "f16")
    past = replace(past, warps=(4, 1), bypass="ab", epilogue="staged")
    yield Form("registers, A and B past shared memory", past, "f16", "f16", residual)
    yield Form("cp_async bf16", replace(ring, atom=tw.atoms.MMA_BF16), "bf16", "bf16")
    yield Form("cp_async f64", replace(ring, atom=tw.atoms.MMA_F64, tile=(32, 32, 16)), "f64", "f64")
    yield Form("cp_async f64, 16 deep", replace(ring, atom=tw.atoms.MMA_F64_M16K16, tile=(64, 32, 32)), *F64)
    ahead = replace(ring, atom=tw.atoms.MMA_F64_M16K4, tile=(64, 64, 16), staging="fragments", group_m=8)
    yield Form("fragments f64", ahead, *F64)
    yield Form("fragments f64, 8 warps", replace(ahead, tile=(128, 128, 16), warps=(2, 4), stages=4), *F64)
    yield Form("registers f64", replace(ahead, staging="registers", stages=1), *F64)
    yield Form("fragments f64, staged", replace(ahead, epilogue="staged"), *F64, residual)
    yield Form("cp_async i8", replace(ring, atom=tw.atoms.TENSOR_CORE["i8"], tile=(64, 64, 64)), "i8", "i32")
    tf32 = replace(ring, atom=tw.atoms.MMA_TF32)
    yield Form("cp_async tf32", tf32, "f32", "f32", tf32_product)
    exact = Schedule(tw.atoms.fma("f32", each=(4, 4)), (64, 64, 16), (2, 2), stages=3, staging="cp_async")
    yield Form("cp_async f32", exact, "f32", "f32")
    yield Form("fragments f16", replace(ring, staging="fragments"), "f16", "f16")
    yield Form("decoded f16", replace(ring, staging="fragments"), "f16", "f16", decoded)
    yield Form("persistent f16", replace(ring, stages=4, blocks=3, group_m=2), "f16", "f32")
    yield Form("staged without roles", replace(ring, epilogue="staged"), "f16", "f16", residual)
    own = Schedule(tw.atoms.wgmma("f16", 64), (64, 64, 64))
    yield Form("wgmma direct", own, "f16", "f32")
    yield Form("wgmma registers", replace(own, staging="registers"), "f16", "f32")
    yield Form("wgmma cp_async", replace(own, stages=3, staging="cp_async"), "f16", "f16")
    for kind in ("f16", "bf16"):
        yield Form(f"cooperative {kind}", hopper(kind), kind, kind)
    yield Form("cooperative wide", hopper("bf16", 256, registers=232), "bf16", "bf16")
    yield Form("cooperative residual", hopper("f16"), "f16", "f16", residual)
    yield Form("cooperative direct", hopper("f16", epilogue="direct"), "f16", "f32")
    yield Form("overlapped", hopper("f16", epilogue="overlapped"), "f16", "f16")
    yield Form("overlapped residual", hopper("f16", epilogue="overlapped"), "f16", "f16", residual)
    yield Form("once", hopper("f16", blocks=0, registers=0), "f16", "f16")
    for cluster in ((2, 1), (1, 2), (2, 2)):
        yield Form(f"cluster {cluster}", hopper("f16", 128, cluster=cluster, blocks=8), "f16", "f16")
    game = {"roles": "ping-pong", "tile": (64, 64, 64)}
    yield Form("ping-pong", hopper("f16", **game), "f16", "f16")
    yield Form(
        "ping-pong overlapped", hopper("bf16", **game, epilogue="overlapped"), "bf16", "bf16", residual
    )
    yield Form(
        "ping-pong cluster",
        hopper("f16", 128, roles="ping-pong", tile=(64, 128, 64), cluster=(2, 1), blocks=8),
        "f16",
        "f32",
    )
    for kind in ("f8e4m3", "f8e5m2"):
        yield Form(f"promoted {kind}", hopper(kind, promote=2), kind, "bf16", layouts=("nt",))
    deep = hopper("f8e4m3", 64, tile=(128, 128, 256), stages=2, promote=1)
    yield Form("promoted slices of deep tiles", deep, "f8e4m3", "bf16", layouts=("nt",))
    yield Form("swapped cp_async f16", replace(ring, swap_ab=True, epilogue="staged"), "f16", "f16", residual)
    yield Form("swapped decoded f16", replace(ring, staging="fragments", swap_ab=True), "f16", "f16", decoded)
    for columns in (8, 16, 32, 64):
        few = hopper("bf16", columns, tile=(64, columns, 256), groups=1, blocks=0, registers=0, swap_ab=True)
        kernel = residual if columns == 16 else product
        yield Form(f"swapped {columns} rows", few, "bf16", "bf16", kernel, _swapped(columns))
    tall = hopper("f16", 16, tile=(128, 16, 64), epilogue="overlapped", swap_ab=True)
    yield Form("swapped overlapped", tall, "f16", "f16", residual, _swapped(16))
    yield Form("cooperative i8", hopper("i8"), "i8", "i32", layouts=("nt",))
    yield Form("cooperative tf32", hopper("f32"), "f32", "f32", tf32_product, layouts=("nt",))


def _swapped(columns: int) -> tuple[str, ...]:
    """Return layouts for swapped operands: A along its rows is loaded 64 rows at a time."""
    return ("nn", "nt", "tn", "tt") if columns % 64 == 0 else ("nn", "nt")


FORMS = {form.name: form for form in forms()}
"""By name."""
