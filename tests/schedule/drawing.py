"""Random schedules, kernels and classes of arrays, on both sides of the legal limits.

    python tests/schedule/drawing.py --count 1000 --seed 0

compares the resources of ``count`` schedules by formula with those of their expanded kernels.
"""

from __future__ import annotations

import argparse
import random
import sys
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import tilewright as tw
from tilewright.arch import REFERENCE, Arch
from tilewright.errors import TilewrightError
from tilewright.ir import verify
from tilewright.ir.kernel import Kernel
from tilewright.lang.program import Program
from tilewright.lang.specs import TensorSpec
from tilewright.passes.pipeline import run_passes
from tilewright.runtime.backends import backend_named
from tilewright.schedule.expand import Expanded
from tilewright.schedule.form import Form, form_of
from tilewright.schedule.legality import OF_MEANING, reasons
from tilewright.schedule.resources import ScheduleOnMachine
from tilewright.targets import cpu, cuda
from tilewright.targets.atoms import MMA_SYNC, WGMMA
from tilewright.targets.target import TARGETS


def product(A, B, C):
    for m, n in tw.tiles(C):
        acc = tw.zeros()
        for k in tw.steps(A.shape[1]):
            acc += A[m, k] @ B[n, k].T
        C[m, n] = acc


def layer(A, B, bias, C):
    for m, n in tw.tiles(C):
        acc = tw.zeros()
        for k in tw.steps(A.shape[1]):
            acc += A[m, k] @ B[n, k].T
        C[m, n] = acc * 2 + bias[n]


def normed(A, B, C, largest):
    for m, n in tw.tiles(C):
        acc = tw.zeros()
        for k in tw.steps(A.shape[1]):
            acc += A[m, k] @ B[n, k].T
        top = acc.max(1)
        largest[m] = top
        C[m, n] = acc - top[:, None]


def batched(A, B, C):
    for b, m, n in tw.tiles(C):
        acc = tw.zeros()
        for k in tw.steps(A.shape[2]):
            acc += A[b, m, k] @ B[b, k, n]
        C[b, m, n] = acc


def grouped(A, B, ends, C):
    for g, m, n in tw.tiles(C, groups=ends):
        acc = tw.zeros()
        for k in tw.steps(A.shape[1]):
            acc += A[m, k] @ B[g, k, n]
        C[m, n] = acc


PROGRAMS = {
    "product": Program(product, {"A": "M K", "B": "N K", "C": "M N"}),
    "layer": Program(layer, {"A": "M K", "B": "N K", "bias": "N", "C": "M N"}),
    "normed": Program(normed, {"A": "M K", "B": "N K", "C": "M N", "largest": "M"}),
    "batched": Program(batched, {"A": "L M K", "B": "L K N", "C": "L M N"}),
    "grouped": Program(grouped, {"A": "M K", "B": "L K N", "ends": "L", "C": "M N"}),
}
ARCHES = {
    "sm_90a": TARGETS["cuda"].architecture("sm_90a"),
    "sm_80": TARGETS["cuda"].architecture("sm_80"),
    "x86-64-v3": TARGETS["cpu"].architecture("x86-64-v3"),
    "numpy": REFERENCE,
}
SUMS = {"f64": "f64", "i8": "i32", "u8": "i32"}


@dataclass(frozen=True)
class Problem:
    """A problem that a schedule must solve.

    Args:
        program: one of `PROGRAMS`.
        specs: the classes of its arrays, in its order.
        arch: one of `ARCHES`.
    """

    program: str
    specs: tuple[tuple[str, TensorSpec], ...]
    arch: str

    @property
    def arrays(self) -> Mapping[str, TensorSpec]:
        """The classes by name."""
        return dict(self.specs)

    @property
    def machine(self) -> Arch:
        """The architecture."""
        return ARCHES[self.arch]

    @property
    def is_cpu(self) -> bool:
        """Whether one thread runs a block."""
        return self.arch in TARGETS["cpu"].architectures

    @lru_cache(maxsize=4096)  # noqa: B019 problems are few, and made once
    def form(self) -> Form:
        """The form of the problem's flow."""
        return form_of(PROGRAMS[self.program].run(self.arrays))  # type: ignore[arg-type]

    def case(self, schedule: tw.Schedule) -> ScheduleOnMachine:
        """The case of a schedule."""
        return ScheduleOnMachine(schedule, self.form(), self.arrays, self.machine)

    def expand(self, schedule: tw.Schedule) -> Kernel:
        """The explicit kernel."""
        flow = self.form().flow
        return Expanded(PROGRAMS[self.program], flow, schedule).unchecked(self.arrays, arch=self.machine)

    def broken(self, schedule: tw.Schedule) -> tuple[list[str], Kernel | None]:
        """Return the rules that the expanded kernel breaks, or the error of the expansion, and the kernel."""
        try:
            kernel = self.expand(schedule)
        except TilewrightError as error:
            return [f"{type(error).__name__}: {error}"], None
        found = verify.violations(kernel)
        if self.arch.startswith("sm_"):
            found = [*found, *cuda.violations(kernel, self.arch)]
        elif self.arch != "numpy":
            found = [*found, *cpu.violations(kernel, self.arch)]
        return [str(violation) for violation in found], kernel

    def lowered(self, kernel: Kernel) -> Kernel:
        """Return the kernel after its target's passes."""
        owner = next(target for target in TARGETS.values() if self.arch in target.architectures)
        return run_passes(kernel, self.machine, backend_named(owner.name).passes)[0]


def by_meaning(case: ScheduleOnMachine) -> list[Any]:
    """Why a schedule is refused although no rule of kernels is broken."""
    return [reason for rule in OF_MEANING for reason in rule(case)]


@dataclass(frozen=True)
class Compared:
    """A schedule at random, by formula and by its expanded kernel.

    Args:
        verdict: ``"legal"``, ``"broken"`` (a rule of kernels), or ``"refused"`` (what no rule would find).
        difference: where the two do not agree; empty if they do.
    """

    verdict: str
    difference: str = ""


def compared(draw: random.Random) -> Compared:
    """Draw a problem and a schedule, and compare."""
    problem = problem_for(draw)
    return compare(problem, schedule_for(draw, problem))


def compare(problem: Problem, schedule: tw.Schedule) -> Compared:
    """Compare the formulas' results for a schedule with its expanded kernel."""
    case = problem.case(schedule)
    if by_meaning(case):
        return Compared("refused")
    said = [str(one) for one in reasons(schedule, problem.form(), problem.arrays, problem.machine)]
    broken, kernel = problem.broken(schedule)
    about = f"{schedule} for {problem}"
    if bool(said) != bool(broken):
        return Compared(
            "broken", f"{about}: the formulas say {said or 'legal'}, the kernel {broken or 'legal'}"
        )
    if kernel is None or broken:
        return Compared("broken")
    made = problem.lowered(kernel)
    taken, counted = (made.shared_bytes, made.threads), (case.shared_bytes, case.threads)
    if taken != counted and not problem.is_cpu:  # where one thread runs a block, and packs its operands
        return Compared("legal", f"{about}: the kernel takes {taken}, the formulas say {counted}")
    return Compared("legal")


# ---------------------------------------------------------------- drawing


def atom_for(draw: random.Random, kind: tw.DType, background: bool) -> tw.MmaAtom:
    """Draw an atom, mostly one of the dtype; an asynchronous one only on request."""
    strict, sums = draw.random() < 0.95, tw.dtype(SUMS.get(kind.name, "f32"))

    def fits(known: Any, a: tw.DType, c: tw.DType) -> bool:
        return a == kind and (not strict or (c == sums and known.precision is None))

    rows = [row for row in WGMMA if fits(row, row.a, row.c)]
    choice = draw.random() if background or draw.random() < 0.1 else draw.uniform(0.5, 1)
    if choice < 0.5 and (rows or not strict):
        row = draw.choice(rows if strict else WGMMA)
        n = draw.choice((8, 16, 32, 64, 96, 128, 192, 256))
        return tw.atoms.wgmma(row.a, n, row.b, row.c)
    if choice < 0.8:
        fitting = [atom for atom in MMA_SYNC if fits(atom, atom.a_dtype, atom.c_dtype)]
        if fitting or not strict:
            return draw.choice(fitting if strict else MMA_SYNC)
    lanes = draw.choice((*(((4, 8), (8, 4)) * 6), (4, 4)))
    return tw.atoms.fma(kind, lanes=lanes, each=draw.choice(((1, 1), (4, 4), (2, 8))))


def spec_for(draw: random.Random, kind: tw.DType, rank: int, plain: bool) -> TensorSpec:
    """Draw a class of arrays; a plain one is row-major or column-major, and aligned."""
    if plain:
        units = [max(16 // kind.bytes, 1)] * rank
        unit_dim, align = draw.choice((rank - 1, rank - 1, max(rank - 2, 0))), 16
    else:
        units = [draw.choice((1, 2, 4, 8, 16, 64)) for _ in range(rank)]
        unit_dim = draw.choice((rank - 1, rank - 1, max(rank - 2, 0), None, 0))
        align = max(draw.choice((1, 2, 4, 8, 16, 16)), kind.bytes)
    strides = tuple(1 if dim == unit_dim else unit for dim, unit in enumerate(units))
    extents = tuple(draw.choice((unit, 1, 16)) for unit in units) if not plain else tuple(units)
    return TensorSpec(kind, rank, unit_dim, extents, strides, align, False, not plain and draw.random() < 0.1)


def problem_for(draw: random.Random) -> Problem:
    """Draw a kernel, classes of its arrays, and a machine."""
    name = draw.choice(("product", "product", "layer", "normed", "batched", "grouped"))
    kind = tw.dtype(draw.choice(("f16", "f16", "bf16", "f8e4m3", "i8", "f64", "f32")))
    out = tw.dtype(draw.choice((SUMS.get(kind.name, "f32"), SUMS.get(kind.name, kind.name))))
    specs = []
    for parameter in PROGRAMS[name].parameters:
        dtype = kind if parameter.name in "AB" else tw.i32 if parameter.name == "ends" else out
        specs.append((parameter.name, spec_for(draw, dtype, len(parameter.dims), draw.random() < 0.85)))
    return Problem(
        name, tuple(specs), draw.choice(("sm_90a", "sm_90a", "sm_90a", "sm_80", "x86-64-v3", "numpy"))
    )


def schedule_for(draw: random.Random, problem: Problem) -> tw.Schedule:
    """Draw a schedule, mostly a legal one."""
    kind = problem.arrays["A"].dtype
    atom = atom_for(draw, kind, problem.arch in ("sm_90a", "numpy"))
    bulk = problem.arch == "sm_90a" and draw.random() < (0.6 if atom.asynchronous else 0.1)
    roles = draw.choice(("cooperative", "ping-pong")) if bulk else "none"
    groups = draw.choice((2, 2, 1, 3)) if bulk else 1
    known = ("direct", "registers", "cp_async", "cp_async", "fragments")
    if problem.arch in ("x86-64-v3", "numpy") and draw.random() < 0.3:
        atom, known = tw.atoms.fma(kind, lanes=(1, 1), each=draw.choice(((1, 1), (6, 16)))), ("panels",) * 5
    staging = "tma" if bulk else draw.choice(known[: 4 if atom.asynchronous and draw.random() < 0.95 else 5])
    warps = (
        (1, 1)
        if atom.asynchronous or atom.lanes == 1
        else draw.choice(((1, 1), (2, 2), (2, 4), (4, 2), (4, 1), (8, 8)))
    )
    m, n, k = atom.shape
    shared_by = groups if roles == "cooperative" else 1
    depth = draw.choice(
        (max(128 // kind.bytes, k), max(128 // kind.bytes, k), 2 * 128 // kind.bytes, k, 3 * k)
    )
    rows = m * warps[0] * shared_by * draw.choice((1, 1, 1, 2, 2, 4))
    columns = n * warps[1] * draw.choice((1, 1, 1, 2) if atom.asynchronous else (1, 2, 4, 8))
    tile = [rows, columns, depth]
    if draw.random() < 0.05:
        tile[draw.randrange(3)] += draw.choice((1, 8, -8))
    wished = 0.02 if bulk or atom.asynchronous or staging == "panels" else 0.3
    made = tw.Schedule(
        atom,
        tuple(max(extent, 1) for extent in tile),  # type: ignore[arg-type]
        warps=warps,
        stages=1 if staging in ("direct", "panels", "registers") else draw.choice((2, 3, 4, 4, 8)),
        staging=staging,
        roles=roles,
        groups=groups,
        blocks=draw.choice((1, 132)) if roles == "ping-pong" or draw.random() < 0.5 else 0,
        **draw.choice(({"group_m": 8}, {"group_m": 1}, {"group_n": 4}, {})),
        cluster=draw.choice(((2, 1), (1, 2), (2, 2), (4, 4))) if bulk and draw.random() < 0.3 else (1, 1),
        promote=draw.choice((0, 0, 0, 1, 4)),
        epilogue=draw.choice(("direct", "staged", "overlapped") if bulk else ("direct", "direct", "staged")),
        buffers=draw.choice((1, 2, 3)),
        registers=draw.choice((0, 232, 232, 240, 160, 152)),
        swap_ab=draw.random() < 0.3,
        bypass=draw.choice(("", "a", "b", "ab")) if staging == "registers" else "",
        **(placed(draw, depth, atom.lanes * warps[0] * warps[1]) if draw.random() < wished else {}),
        batches=draw.choice((2, 7)) if problem.program == "batched" and draw.random() < 0.3 else 1,
        prefetch=draw.random() < 0.8,
    )
    made = replace(made, **odd(draw)) if draw.random() < 0.05 else made
    if made.staging == "fragments" and made.roles == "none" and draw.random() < 0.3:
        alone = {"blocks": 0, "batches": 1, "promote": 0, "epilogue": "direct"} if draw.random() < 0.9 else {}
        return replace(made, groups=draw.choice((2, 3, 16)), **alone)
    return replace(made, **split(draw, made)) if draw.random() < 0.25 else made


def split(draw: random.Random, schedule: tw.Schedule) -> dict[str, Any]:
    """Draw a split of K, mostly a legal one."""
    changes: dict[str, Any] = {
        "split_k": draw.choice((2, 7, "auto", "stream", "stream")),
        "reduction": draw.choice(("workspace", "reduce-scatter", "turnstile", "atomic", "cluster")),
    }
    if changes["reduction"] == "cluster" and draw.random() < 0.9:
        changes["split_k"] = draw.choice((2, 4, 7, 16))
        changes["registers"] = 0
    if draw.random() < 0.9:
        changes["blocks"] = 132 if isinstance(changes["split_k"], str) else 0
        if changes["split_k"] == "stream" or changes["reduction"] == "cluster":
            changes["cluster"] = (1, 1)
        changes["epilogue"] = "staged" if schedule.epilogue == "overlapped" else schedule.epilogue
        if changes["reduction"] == "reduce-scatter":
            changes["epilogue"] = "direct"
        changes["roles"] = "cooperative" if schedule.roles != "none" else "none"
    return changes


def placed(draw: random.Random, depth: int, threads: int) -> dict[str, Any]:
    """Draw layouts of tiles in shared memory and who copies them, mostly in whole parts."""
    k1 = draw.choice((8, 4, depth, 3))
    along_k = draw.choice((1, 2, 4))
    grid = (max(threads // along_k, 1), along_k)
    changes = (
        {"k1": (k1, draw.choice((0, k1))), "extra_rows": (draw.choice((0, 1)), 0)},
        {"dealt": (grid, draw.choice(((0, 0), grid, (7, 4))))},
        {"k1": (k1, k1), "extra_rows": (1, 1), "dealt": (grid, grid)},
        {"k1": (k1, k1), "dealt": (grid, grid), "turned": draw.choice(("a", "b", "ab"))},
    )
    return draw.choice(changes)


def odd(draw: random.Random) -> dict[str, Any]:
    """Draw a change that makes most schedules illegal."""
    return draw.choice(
        (
            {"stages": 1},
            {"groups": 2},
            {"roles": "cooperative"},
            {"group_m": 2, "group_n": 2},
            {"staging": "tma"},
            {"bypass": "a"},
            {"batches": 2},
            {"whole": "mk"},
            {"interleaved": True},
        )
    )


def main() -> int:
    """Compare many schedules, and print how many agree."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--count", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0, help="of the first")
    asked = parser.parse_args()
    verdicts: Counter[str] = Counter()
    differ = 0
    for seed in range(asked.seed, asked.seed + asked.count):
        found = compared(random.Random(seed))
        verdicts[found.verdict] += 1
        if found.difference:
            differ += 1
            print(f"seed {seed}: {found.difference}")
    print(f"{asked.count} schedules from seed {asked.seed}: {dict(verdicts)}, {differ} differences")
    return min(differ, 1)


if __name__ == "__main__":
    sys.exit(main())
