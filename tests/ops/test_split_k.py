"""`matmul` with split K: the same product, the same bits in every run, and in a row among any others."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
import threading
from typing import Any

import numpy as np
import pytest
from tests.turns import Turns

import tilewright as tw
from tilewright.checking.compare import compare_gemm
from tilewright.ops.products import plain
from tilewright.runtime import native
from tilewright.runtime.arrays import ArrayInfo
from tilewright.runtime.binding import bind
from tilewright.schedule.choice import split_candidates
from tilewright.schedule.load import Load
from tilewright.schedule.partition import parts_of_k
from tilewright.schedule.question import Splitting
from tilewright.schedule.splitting import period_of

from .test_products import bound, drawn, nothing_else_written, within

pytestmark = pytest.mark.in_turns(3)

WAYS: dict[str, dict[str, Any]] = {
    "3": {"split_k": 3},
    "auto": {"split_k": "auto"},
    "stream": {"split_k": "stream"},
    "turnstile": {"split_k": 4, "reduction": "turnstile"},
    "atomic": {"split_k": 4, "reduction": "atomic"},
    "batch-invariant": {"batch_invariant": True},
    "batch-invariant, split": {"batch_invariant": True, "split_k": "auto"},
}
TARGETS = pytest.mark.parametrize("target", ["reference", "cpu"])
WAY = pytest.mark.parametrize("way", WAYS)
IN_ORDER = pytest.mark.parametrize("way", [way for way in WAYS if way != "atomic"])


def deep(way: str, target: str) -> int:
    """Return a K of several periods or parts; the last one is cut."""
    return 1203 if "batch" in way or target == "cpu" else 603


@pytest.mark.in_turns(4)
@TARGETS
@WAY
def test_the_product_is_the_same(way: str, target: str) -> None:
    depth = deep(way, target)
    a, b = drawn(1, 37, depth, dtype=np.float16), drawn(2, 45, depth, dtype=np.float16).T
    out = within((37, 45), np.float16)
    assert tw.matmul(a, b, out, target=target, **WAYS[way]) is out
    compare_gemm(a, b, out).raise_if_wrong()
    assert nothing_else_written(out)


@pytest.mark.in_turns(4)
@TARGETS
@WAY
def test_what_is_done_with_the_sums_is_done_once(way: str, target: str) -> None:
    depth = deep(way, target)
    a, b = drawn(1, 2, 21, depth), drawn(2, depth, 33)
    c, bias = drawn(3, 2, 21, 33), drawn(4, 33)
    out = within((2, 21, 33))
    tw.matmul(
        *(a, b, out),
        c=c,
        alpha=0.5,
        beta=-2,
        bias=bias,
        activation="relu",
        residual=c,
        target=target,
        **WAYS[way],
    )
    want = np.maximum(0.5 * (a.astype(float) @ b.astype(float)) - 2.0 * c + bias, 0) + c
    assert (np.abs(out - want) <= bound(a, b) + 1e-5).all()
    assert nothing_else_written(out)


@pytest.mark.in_turns(4)
@TARGETS
@pytest.mark.parametrize("depth", [0, 1, 5, 255, 257])
def test_any_depth(depth: int, target: str) -> None:
    a, b = drawn(1, 9, depth), drawn(2, depth, 13)
    for way in WAYS.values():
        made = tw.matmul(a, b, target=target, **way)
        assert (np.abs(made - a.astype(float) @ b.astype(float)) <= bound(a, b)).all()


@TARGETS
@WAY
def test_a_result_without_elements(way: str, target: str) -> None:
    for a, b in (((0, 70), (70, 5)), ((5, 70), (70, 0)), ((0, 4, 70), (70, 5))):
        out = within((*a[:-1], b[-1]))
        tw.matmul(np.ones(a, np.float32), np.ones(b, np.float32), out, target=target, **WAYS[way])
        assert nothing_else_written(out)


@pytest.mark.in_turns(4)
@TARGETS
@IN_ORDER
def test_the_bits_are_those_of_every_run(way: str, target: str) -> None:
    """Two runs are enough: the reference executes blocks one after the other, operation by operation."""
    depth, count = (2111, 20) if target == "cpu" else (1211, 2)
    a, b = drawn(1, 19, depth), drawn(2, depth, 23)
    runs = {tw.matmul(a, b, target=target, **WAYS[way]).tobytes() for _ in range(count)}
    assert len(runs) == 1


@IN_ORDER
def test_threads_do_not_share_sums(way: str) -> None:
    b = drawn(2, 3000, 50)
    given = [drawn(3 + number, 40, 3000) for number in range(4)]
    alone = [tw.matmul(a, b, target="cpu", **WAYS[way]) for a in given]
    found: list[bool] = []

    def many(number: int) -> None:
        for _ in range(10):
            made = tw.matmul(given[number], b, target="cpu", **WAYS[way])
            found.append(bool((made == alone[number]).all()))

    threads = [threading.Thread(target=many, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [True] * 40


@pytest.mark.parametrize("way", ["batch-invariant", "batch-invariant, split"])
def test_a_row_has_its_bits_among_any_rows(way: str, turns: Turns) -> None:
    a, b = drawn(1, 130, 1500), drawn(2, 1500, 31)
    whole = tw.matmul(a, b, target="cpu", **WAYS[way])
    for rows in turns.among(range(1, 130), parts=3):
        assert (tw.matmul(a[:rows], b, target="cpu", **WAYS[way]) == whole[:rows]).all(), rows


@pytest.mark.in_turns(6)
@pytest.mark.parametrize("compiler", [toolchain.name for toolchain in native.find_toolchains()])
@pytest.mark.parametrize(
    ("dtype", "op"),
    [(d, "matmul") for d in ("f32", "f64", "f16", "bf16", "i8")]
    + [(d, f"complex_matmul {method}") for d in ("c64", "c128") for method in ("4m", "3m")],
)
def test_a_row_has_its_bits_whatever_the_compiler_fuses(dtype: str, op: str, compiler: str) -> None:
    """Micro-tiles have each height and width, tuned for a processor on which GCC avoids fused chains."""
    tuned = "-mtune=znver3" if platform.machine() == "x86_64" else ""
    command = [sys.executable, "-c", ROWS_APART, dtype, op, compiler, tuned]
    threads = 1 + len(dtype + op + compiler) % 2
    environment = {**os.environ, "TILEWRIGHT_THREADS": str(threads)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, ""), done.stdout + done.stderr


ROWS_APART = """
import sys
import numpy as np
import tilewright as tw
from tilewright.runtime import host, native

dtype, op, compiler, tuned = sys.argv[1:]
chosen = next(one for one in native.find_toolchains() if one.name == compiler)
native.find_toolchains = lambda path=None: (chosen,)
if tuned:  # vectors of eight f32, which every such processor has, and two of them in a row of a micro-tile
    native.ARITHMETIC += (tuned,)
    if native.host_arch() == "x86-64-v4":
        native.NATIVE, host.host_arch = "-march=x86-64-v3", lambda: "x86-64-v3"
rng, kind = np.random.default_rng(7), tw.dtype(dtype).numbers

def drawn(*shape):
    if dtype == "i8":
        return rng.integers(-128, 128, shape).astype(kind)
    real = rng.standard_normal(shape)
    return (real + 1j * rng.standard_normal(shape) if dtype[0] == "c" else real).astype(kind)

def product(a, b):
    if op == "matmul":
        return tw.matmul(a, b, batch_invariant=True, target="cpu")
    return tw.complex_matmul(a, b, method=op.split()[1], batch_invariant=True, target="cpu")

for k, n in ((100, 72), (37, 33), (51, 16), (30, 9)):
    a, b = drawn(260, k), drawn(k, n)
    whole = product(a, b)
    for m in (1, 3, 7, 13, 60, 259) if dtype == "f32" else (1, 7, 13):
        got = product(a[:m], b)
        differing = np.argwhere(got != whole[:m])
        if len(differing):
            print(f"K={k} N={n}, {m} rows: {len(differing)} elements differ, the first at {differing[0]}")
"""


@pytest.mark.parametrize("asked", [{}, {"split_k": "auto"}, {"split_k": 3}], ids=str)
def test_a_row_has_its_bits_among_rows_of_several_tiles(asked: dict[str, Any]) -> None:
    a, b = drawn(1, 1600, 4000), drawn(2, 4000, 30)
    whole = tw.matmul(a, b, target="cpu", batch_invariant=True, **asked)
    for rows in (1, 700, 900):
        assert (tw.matmul(a[:rows], b, target="cpu", batch_invariant=True, **asked) == whole[:rows]).all(), (
            rows
        )


@pytest.mark.parametrize("way", ["batch-invariant", "batch-invariant, split"])
@pytest.mark.parametrize("k", [4096, 4099])
def test_a_row_has_its_bits_whatever_the_number_of_tiles(way: str, k: int) -> None:
    """Products have many periods, and one tile of rows or several."""
    a, b = drawn(1, 1600, k), drawn(2, k, 600)
    whole = tw.matmul(a, b, target="cpu", **WAYS[way])
    for rows in (1, 64, 700, 1000):
        assert (tw.matmul(a[:rows], b, target="cpu", **WAYS[way]) == whole[:rows]).all(), rows


@pytest.mark.in_turns(5)
@pytest.mark.parametrize("arch", ["sm_80", "sm_90a"])
@pytest.mark.parametrize("kind", ["f16", "f32", "f8e4m3"])
@pytest.mark.parametrize(
    ("orders", "k"), [*((orders, k) for orders in ("CF", "CC", "FC") for k in (4096, 4099)), ("CF", 16384)]
)
@pytest.mark.parametrize("split_k", [None, "auto"])
def test_the_order_on_gpus_does_not_depend_on_the_number_of_rows(
    arch: str, kind: str, orders: str, k: int, split_k: str | None
) -> None:
    """There is one instruction and one period; each period is a part, or all periods are summed in turn."""
    splitting, seen = Splitting(split_k, batch_invariant=True), set()
    bound = plain(0).bind(precision="exact", schedule=splitting)
    for m in (2, 8, 64, 65, 256, 4096):
        given = (tw.like(kind, m, k, order=orders[0]), tw.like(kind, k, 1000, order=orders[1]))
        given = (*given, tw.like("f16" if kind == "f8e4m3" else kind, m, 1000))
        schedule = bound.schedule_for(*given, target="cuda", arch=arch)
        question = bound.question(*given, target="cuda", arch=arch)
        assert question is not None
        period = schedule.promote * schedule.block_k
        assert Load(question, schedule).parts in (1, -(-k // period))
        seen.add((schedule.atom.instruction, schedule.atom.shape[2], period))
    assert len(seen) == 1, seen
    if kind == "f8e4m3" and "wgmma" in str(seen):
        assert period == 512


def test_a_stream_is_not_invariant() -> None:
    a = drawn(1, 4, 16)
    with pytest.raises(tw.LaunchError, match=r'nearest legal choice: split_k="auto"'):
        tw.matmul(a, a.T, split_k="stream", batch_invariant=True, target="cpu")


def test_more_memory_for_sums_than_places_have_bits_is_refused() -> None:
    made = (
        plain(0)
        .bind(precision="exact", schedule=Splitting(8))
        .compile(
            tw.like("bf16", 64, 4096),
            tw.like("bf16", 4096, 64),
            tw.like("bf16", 64, 64),
            target="cuda",
            arch="sm_90a",
        )
    )
    n = 2**15
    shapes = {"A": (n, 4096), "B": (4096, n), "D": (n, n)}
    infos = {
        name: ArrayInfo(0, shape, (shape[1], 1), tw.bf16, ("cuda", 0), False, None)
        for name, shape in shapes.items()
    }
    with pytest.raises(tw.LaunchError, match=r"elements of memory for partial_sums.*nearest legal choice"):
        bind(made.kernel, infos, {})


def test_split_or_not_the_order_is_that_of_the_periods() -> None:
    a, b = drawn(1, 33, 1203), drawn(2, 1203, 34)
    made = [tw.matmul(a, b, target="reference", **WAYS[way]) for way in WAYS if way.startswith("batch")]
    assert (made[0] == made[1]).all()
    plain_sums = tw.matmul(a, b, target="reference")
    assert (made[0] != plain_sums).any(), "another order of additions rounds some sums otherwise"


SHAPES = [(1, 4096, 4096), (64, 64, 65536), (512, 512, 32768), (300, 200, 5000)]


@pytest.mark.in_turns(4)
@pytest.mark.parametrize("arch", ["sm_80", "sm_90a"])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@WAY
def test_gpus_have_kernels_for_it(way: str, shape: tuple[int, int, int], arch: str) -> None:
    m, n, k = shape
    asked = WAYS[way]
    bound = plain(0).bind(precision="exact", schedule=Splitting(**asked))
    arrays = tw.like("bf16", m, k), tw.like("bf16", k, n, order="F"), tw.like("bf16", m, n)
    schedule = bound.schedule_for(*arrays, target="cuda", arch=arch)
    assert schedule is not None
    assert (schedule.atom.instruction == "wgmma") == (arch == "sm_90a")
    if asked.get("split_k"):
        assert schedule.split_k != 1
    if "batch_invariant" in asked:
        assert schedule.promote * schedule.block_k == period_of(k)


@pytest.mark.parametrize("way", ["stream", "auto", "turnstile", "batch-invariant"])
def test_such_a_kernel_compiles(way: str) -> None:
    asked = WAYS[way]
    bound = plain(0).bind(precision="exact", schedule=Splitting(**asked))
    arrays = tw.like("bf16", 16, 4096), tw.like("bf16", 4096, 4096, order="F"), tw.like("bf16", 16, 4096)
    made = bound.compile(*arrays, target="cuda", arch="sm_90a")
    assert not made.resources["spill_store_bytes"]


def test_as_many_parts_as_fill_the_machine() -> None:
    arrays = tw.like("bf16", 64, 65536), tw.like("bf16", 65536, 64), tw.like("bf16", 64, 64)
    asked = Splitting("auto")
    question = (
        plain(0).bind(precision="exact", schedule=asked).question(*arrays, target="cuda", arch="sm_90a")
    )
    found = [one for one in split_candidates(question) if one.schedule.reduction == "workspace"]
    assert [one.estimate for one in found if one.schedule.staging == "tma"] == sorted(
        one.estimate for one in found if one.schedule.staging == "tma"
    )
    for one in found:
        parts = Load(question, one.schedule).parts
        assert f"K in {parts} part" in one.rule
        assert parts == max(min(132, 65536 // one.schedule.block_k // 4), 1)
    for tiles, steps, parts in ((1, 1024, 132), (66, 1024, 2), (67, 1024, 1), (500, 1024, 1), (1, 3, 1)):
        assert parts_of_k(tiles, steps, 132) == parts


A = np.zeros((4, 4), np.float32)


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"split_k": 0}, "split_k must be an integer of at least 1, 'auto' or 'stream'"),
        ({"split_k": "all"}, "split_k must be an integer of at least 1, 'auto' or 'stream'"),
        ({"split_k": 2, "reduction": "sum"}, "reduction must be one of 'workspace', 'reduce-scatter'"),
        ({"batch_invariant": True, "reduction": "atomic"}, 'nearest legal choice: reduction="workspace"'),
        ({"batch_invariant": True, "split_k": "stream"}, 'nearest legal choice: split_k="auto"'),
        (
            {"split_k": "stream", "reduction": "turnstile"},
            "the first part of a share is the one that other blocks await",
        ),
        (
            {"split_k": 2, "schedule": tw.Schedule(tw.atoms.fma("f32"), (32, 32, 8))},
            "nearest legal choice: schedule=tw.Schedule",
        ),
    ],
)
def test_what_cannot_be_is_refused(wrong: dict[str, Any], said: str) -> None:
    with pytest.raises(tw.LaunchError) as refused:
        tw.matmul(A, A, target="cpu", **wrong)
    assert said in str(refused.value)
