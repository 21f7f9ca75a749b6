"""Small kernels of every kind on the GPU, for `compute-sanitizer python benchmarks/sanitize.py [KERNELS]`.

    gemms      the library's GEMM: every dtype, layout and number of stages
    movers     the first random movers: every memory, width and layout
    clusters   the Hopper GEMM in every shape of cluster, and blocks that exchange data
    blocks     blocks that signal, reach each other's memory, gather, scatter and reduce
    schedules  a dataflow kernel with every form of schedule
    splits     products with split K, by each reduction
    rows       kernels whose warps or blocks share rows, and loops that follow each other
    members    a random problem of each set of each member of the family, compiled when it runs
    planted    a GEMM without the barrier after the multiply, so that the tool has something to find

Every result is compared. No framework is loaded, so the tool sees only our kernels. ``--compile`` compiles
every text and launches none. ``--target`` runs the kernels without a GPU. ``--part 1 3`` takes every third
kernel, beginning with the second.
"""

from __future__ import annotations

import argparse
import importlib
import runpy
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

import tilewright as tw
from tilewright.checking.sample import Operands, operands
from tilewright.ir.kernel import Kernel
from tilewright.ops.products import output_dtype, plain
from tilewright.runtime.gpu_memory import DeviceArray, device_put
from tilewright.runtime.kernel import Bound
from tilewright.runtime.nvrtc import compile_text
from tilewright.schedule.fixup import FAN
from tilewright.targets import cuda
from tilewright.targets.atoms import MMA_F16
from tilewright.targets.target import CUDA, REFERENCE
from tilewright.tune.trial import PlannedTrial, Trial

TESTS = Path(__file__).parents[1] / "tests"
sys.path.insert(0, str(TESTS.parent))

from tests.gpu.splits import SPLIT_FORMS  # noqa: E402
from tests.problems.sets import SETS  # noqa: E402

ARCH = "sm_90a"

SHAPES = ((128, 128, 64), (129, 129, 67))
CASES = (
    ("f64", "exact"),
    ("f32", "exact"),
    ("f32", "tf32"),
    ("f16", "exact"),
    ("bf16", "exact"),
    ("i8", "exact"),
)
MOVERS = 60
"""Number of random movers."""
CLUSTER_SHAPE = (300, 392, 200)
"""Extents: more than a tile along M and N, ragged along all three."""
EXCHANGE_SHAPE = (64 * 3 - 5, 100)


@dataclass(frozen=True)
class Case:
    """A kernel on a problem; ``run`` returns whether every element is right, if it compared them."""

    name: str
    trace: Callable[[], Kernel] | None
    run: Callable[[], bool | None]


@tw.kernel(A="M K", B="N K", C="M N")
def racy_gemm(A, B, C, *, tile, threads, mma):
    tile_m, tile_n, tile_k = tile
    m, n = tw.block_index(tw.ceil_div(C.shape, (tile_m, tile_n)))
    sA = tw.shared((tile_m, tile_k), A.dtype)
    sB = tw.shared((tile_n, tile_k), B.dtype)
    acc = tw.accumulator(mma)
    for k in tw.range(tw.ceil_div(A.shape[1], tile_k)):
        tw.copy(A.tile((tile_m, tile_k), (m, k)), sA, threads=threads)
        tw.copy(B.tile((tile_n, tile_k), (n, k)), sB, threads=threads)
        tw.barrier()
        tw.mma(sA, sB, acc)  # the next copies may overwrite what another warp still reads
    tw.copy(acc, C.tile((tile_m, tile_n), (m, n)))


def planted(target: str) -> Iterator[Case]:
    mma = tw.TiledMma(MMA_F16, warps=(2, 2), repeats=(2, 4))
    bound = racy_gemm.bind(tile=(64, 64, 32), threads=128, mma=mma)
    trial = Trial(bound, operands("random", tw.f16, (64, 64, 256), layout="nt"), target, MMA_F16, "racy")

    def run() -> None:
        trial.run()  # its result may be wrong

    yield Case(trial.name, trial.trace, run)


def gemms(target: str) -> Iterator[Case]:
    for name, precision in CASES:
        for shape in SHAPES:
            for layout in ("nn", "nt", "tn", "tt"):
                made = operands("random", tw.dtype(name), shape, layout=layout)
                schedule = chosen(made, precision) if target == REFERENCE.name else None
                yield tried(PlannedTrial(made, target, precision, schedule))
    for stages in (1, 2, 3):
        schedule = tw.Schedule(MMA_F16, (64, 64, 32), (2, 2), stages, "cp_async" if stages > 1 else "direct")
        yield tried(PlannedTrial(operands("random", tw.f16, (192, 160, 224)), target, schedule=schedule))


def chosen(made: Operands, precision: str) -> tw.Schedule | None:
    """Return the kernel that would be chosen on a GPU; the reference can run it, too."""
    m, n, _ = made.shape
    result = np.empty((m, n), output_dtype(tw.dtype(made.a.dtype)).numpy)
    bound = plain(0).bind(precision=precision)
    return bound.schedule_for(made.a, made.b, result, target=CUDA.name, arch=ARCH)


def movers(target: str) -> Iterator[Case]:
    drawn = runpy.run_path(str(TESTS / "movers" / "random_movers.py"))["drawn"]
    for made in map(drawn, range(MOVERS)):
        name = f"mover {made.number} {made.dtype} {made.path}"
        yield Case(name, made.trace, partial(made.moves_every_bit, target))


def clusters(target: str) -> Iterator[Case]:
    kernels = runpy.run_path(str(TESTS / "gpu" / "clusters.py"))
    choices = kernels["CHOICES"]
    for number, cluster in enumerate(kernels["CLUSTERS"]):
        choice = choices[number % len(choices)]
        yield tried(kernels["gemm"](cluster, choice, CLUSTER_SHAPE, target))
    exchange = kernels["Exchange"](EXCHANGE_SHAPE, target)
    yield Case(f"mailbox {EXCHANGE_SHAPE}", exchange.trace, exchange.right)


def blocks(target: str) -> Iterator[Case]:
    signals, peers, rows = (
        runpy.run_path(str(TESTS / path))
        for path in ("targets/signals.py", "hazards/peers.py", "targets/gathered.py")
    )
    rng = np.random.default_rng(7)
    a, b = rng.integers(-4, 5, (2, 40, 70)).astype(np.float32)
    c = np.full((40, 40), np.nan, np.float32)
    yield launched(
        "turnstile", signals["SMALL_TURNSTILE"], target, (a, b, c), lambda *got: (got[2] == a @ b.T).all()
    )
    x, total = rng.integers(-4, 5, 3000).astype(np.float32), np.full(1, np.nan, np.float32)
    sums = signals["last_block_sum"].bind()
    yield launched("last block", sums, target, (x, total), lambda *got: got[1][0] == x.sum())
    counted, bins = rng.integers(0, 64, 3000).astype(np.int32), np.zeros(64, np.int32)
    histogram = signals["histogram"].bind()
    right = np.bincount(counted, minlength=64)
    yield launched("histogram", histogram, target, (counted, bins), lambda *got: (got[1] == right).all())
    for way in peers["WAYS"]:
        x, y = peers["arguments"]((200, 71), 2, way, 1)

        def same(*got: Any, x: Any = x, way: str = way) -> bool:
            peers["check"](x, got[1], 2, way)
            return True

        yield launched(f"peers {way}", peers["exchange"].bind(across=2, way=way), target, (x, y), same)
    table, index = rng.standard_normal((50, 48)).astype(np.float32), rng.permutation(50)[:37].astype(np.int32)
    for way in ("registers", "async"):
        y, gather = np.full((37, 48), np.nan, np.float32), rows["gather"].bind(way=way)
        found = (table, index, y)
        yield launched(f"gather {way}", gather, target, found, lambda *got: (got[2] == table[index]).all())
    y, scatter = np.zeros((50, 48), np.float32), rows["scatter"].bind(way="registers", reduction="add")
    want = np.zeros_like(y)
    want[index] = table[:37]
    yield launched("scatter", scatter, target, (table[:37], index, y), lambda *got: (got[2] == want).all())


def schedules(target: str) -> Iterator[Case]:
    for form in runpy.run_path(str(TESTS / "gpu" / "schedules.py"))["forms"]():
        # Two steps more than stages; along M and N a tile and a part of the next one.
        m, n, k = form.schedule.tile
        yield formed(form, (m + 16, n + 16, (form.schedule.stages + 2) * k - 16), target)


def splits(target: str) -> Iterator[Case]:
    for form in SPLIT_FORMS.values():
        together = form.schedule.reduction in ("cluster", "reduce-scatter")
        if together or form.schedule.split_k in (3, FAN + 1, "stream"):
            yield formed(form, next(form.shapes(0, form.layouts[0])), target)


def formed(form: Any, shape: tuple[int, int, int], target: str) -> Case:
    before = form.arrays(shape, form.layouts[0] if len(form.layouts) == 1 else "nt", 1)

    def trace() -> Kernel:
        bound = form.kernel.bind(schedule=form.schedule)
        made: Kernel = bound.trace(*before.values(), target="cuda", arch=ARCH)
        return made

    def run() -> bool:
        found = form.compare(before, form.run(before, target)[1])
        print(found, end="; ")
        return bool(found.ok)

    return Case(f"schedule {form} {shape}", trace, run)


def rows(target: str) -> Iterator[Case]:
    """Yield the kernels of the tests of shared rows, which import pytest."""
    found = importlib.import_module("tests.schedule.test_shared_rows")
    for name in found.NAMES:
        for way, schedule in found.WAYS.items():
            case = found.case_of(name, 5, 700)
            bound = case.kernel.bind(schedule=schedule)
            yield Case(
                f"{name}, {way}",
                partial(bound.trace, **case.arguments()),
                partial(of_rows, case, bound, target),
            )


def of_rows(case: Any, bound: Bound, target: str) -> bool:
    given = case.arguments(partial(device_put, target=target))
    bound(**given, target=target)
    made = {name: given[name] for name in case.results}
    wrong = case.wrong(
        {name: one.host() if isinstance(one, DeviceArray) else one for name, one in made.items()}
    )
    print(*wrong, end="")
    return not wrong


def members(target: str) -> Iterator[Case]:
    """Yield the tests' random problems, which import pytest; the other kernels do not."""
    found = importlib.import_module("tests.problems.members").MEMBERS
    for number in range(min(SETS[target], SETS[CUDA.name])):
        for name, carried_out in found.items():
            yield Case(f"{name}, problem {number}", None, partial(is_right, carried_out, number, target))


def is_right(carried_out: Callable[[int, str], str], number: int, target: str) -> bool:
    pytest, canaries = importlib.import_module("pytest"), importlib.import_module("tests.canaries")
    with pytest.MonkeyPatch.context() as patch, canaries.in_force(patch):  # parts of arrays need them, too
        wrong = carried_out(number, target)
    print(wrong, end="")
    return not wrong


def launched(
    name: str, bound: Bound, target: str, arrays: tuple[Any, ...], right: Callable[..., Any]
) -> Case:
    def run() -> bool:
        placed = [device_put(array, target) for array in arrays]
        bound(*placed, target=target)
        return bool(right(*(array.host() if isinstance(array, DeviceArray) else array for array in placed)))

    return Case(name, partial(bound.trace, *arrays), run)


def tried(trial: Trial) -> Case:
    def run() -> bool:
        trial.run()
        comparison = trial.verify()
        print(comparison, end="; ")
        return comparison.ok

    return Case(f"{trial.name} {trial.operands.shape}", trial.trace, run)


KERNELS: dict[str, Callable[[str], Iterator[Case]]] = {
    "gemms": gemms,
    "movers": movers,
    "clusters": clusters,
    "blocks": blocks,
    "schedules": schedules,
    "splits": splits,
    "rows": rows,
    "members": members,
    "planted": planted,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("kernels", nargs="?", choices=KERNELS, default="gemms")
    parser.add_argument("--target", default="cuda")
    parser.add_argument("--compile", action="store_true", help=f"only compile, for {ARCH}; needs no GPU")
    parser.add_argument("--part", nargs=2, type=int, default=(0, 1), metavar=("FIRST", "STEP"))
    asked: Any = parser.parse_args()
    first, step = asked.part
    cases = KERNELS[asked.kernels]("reference" if asked.compile else asked.target)
    for case in islice(cases, first, None, step):
        if asked.compile and case.trace:
            compile_text(cuda.emit(case.trace(), ARCH).text, ARCH)
            print(case.name, "compiled", flush=True)
            continue
        right = case.run()
        print(case.name, {None: "ran", True: "verified", False: "WRONG"}[right], flush=True)
        if right is False:
            raise SystemExit(1)


if __name__ == "__main__":
    main()
