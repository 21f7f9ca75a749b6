"""If a copy names no number of threads, all threads that execute it share its tile."""

from __future__ import annotations

import ast
import runpy
from pathlib import Path

import numpy as np
import pytest

import tilewright as tw
from tilewright.inspect.report import sector_factor
from tilewright.ir.copies import is_by_threads
from tilewright.ir.kernel import Kernel
from tilewright.ir.types import Memory
from tilewright.views.questions import stride

pytestmark = pytest.mark.in_turns(3)

EXAMPLES = Path(__file__).parents[2] / "examples"


class Unsaid(ast.NodeTransformer):
    """Removes ``threads=`` from copies, and the arguments of ``partition``."""

    def __init__(self) -> None:
        self.taken = 0

    def visit_Call(self, call: ast.Call) -> ast.Call:
        self.generic_visit(call)
        name = call.func.attr if isinstance(call.func, ast.Attribute) else ""
        if name in ("copy", "copy_async"):
            kept = [keyword for keyword in call.keywords if keyword.arg != "threads"]
            self.taken += len(call.keywords) - len(kept)
            call.keywords = kept
        elif name == "partition" and [*map(ast.unparse, call.args)] == ["threads"]:
            self.taken += 1
            call.args = []
        return call


@pytest.fixture(scope="module")
def rewritten(tmp_path_factory):
    """Return the files of the examples without any number of threads of a copy."""
    folder = tmp_path_factory.mktemp("examples")
    taken = {}
    for path in EXAMPLES.glob("*.py"):
        change = Unsaid()
        text = ast.unparse(change.visit(ast.parse(path.read_text())))
        (folder / path.name).write_text(text)
        taken[path.stem] = change.taken
    return folder, taken


F16, F32 = tw.like("f16", 512, 512), tw.like("f32", 512, 512)
SPECS = {
    "02_basic_gemm": [(lambda module: module["LARGE"], (F16, F16, F16))],
    "04_optimized_gemm": [(lambda module: module["LARGE"], (F16, F16, F16))],
    "05_im2col": [
        (
            lambda module: module["LARGE"],
            (tw.like("f32", 32, 9, 9, 7, 4, 64), tw.like("f32", 4, 7840, 1728)),
        )
    ],
    "06_warp_tiles_gemm": [(lambda module: module["BOUND"][tw.f16], (F16, F16, F32))],
    "07_three_levels_gemm": [
        (lambda module, at=at: module["bind"](module["LEVELS"][at]), (F16, F16, F32)) for at in range(3)
    ],
}
"""Kernels of the examples, and aligned arrays for each."""

TO_REGISTERS = {"06_warp_tiles_gemm"}
"""Its tiles go to registers, by the maps of what is multiplied."""

SAID_NOWHERE = TO_REGISTERS | {"07_three_levels_gemm"}
"""Examples that say of no copy how many threads it has."""


def shared_out(kernel: Kernel) -> list:
    """Return copies between memories; the recorder distributes them among the threads."""
    return [op for op in kernel.walk() if is_by_threads(op) and op.source.is_tensor and op.target.is_tensor]


@pytest.mark.parametrize("name", SPECS)
def test_as_few_sectors_as_the_bytes_of_the_tile_need(name, rewritten) -> None:
    """This includes every copy between memories, and loads without the map of a multiply."""
    folder, taken = rewritten
    assert (taken[name] == 0) == (name in SAID_NOWHERE)
    module = runpy.run_path(str(folder / f"{name}.py"))
    for made, arrays in SPECS[name]:
        bound = made(module)
        kernel = bound.trace(*arrays)
        mma = bound.constants.get("mma")
        depths = () if mma is None else (mma.tile[2], bound.constants["tile"][2])
        maps = [mma.c() for _ in depths] + [operand(k) for k in depths for operand in (mma.a, mma.b)]
        moved = [op for op in kernel.walk() if is_by_threads(op) and op.spread not in maps]
        factors = [sector_factor(kernel, op) for op in moved]
        assert {factor for factor in factors if factor is not None} <= {1.0}
        assert (1.0 in factors) != (name in TO_REGISTERS)
        threads = 128 if mma is None else mma.threads
        assert kernel.threads == threads
        assert {op.spread.size_threads for op in shared_out(kernel)} <= {threads}


@pytest.mark.parametrize("name", SPECS)
def test_they_compile_for_machines_that_copy_in_the_background_or_not(name, rewritten) -> None:
    folder, _ = rewritten
    module = runpy.run_path(str(folder / f"{name}.py"))
    for made, arrays in SPECS[name]:
        for arch in ("sm_80", "sm_90a"):
            compiled = made(module).compile(*arrays, target="cuda", arch=arch)
            assert compiled.target == "cuda"
            assert not [note for note in compiled.listing.notes if "at once" in note]


@pytest.mark.parametrize("target", ["reference", "cpu"])
@pytest.mark.parametrize("name", SPECS)
def test_the_examples_still_find_every_element_right(name, target, rewritten, monkeypatch, capsys) -> None:
    """They run at small sizes, and at sizes that no tile divides; the programs check which target ran."""
    folder, _ = rewritten
    monkeypatch.setattr("sys.argv", [name, "--small", "--target", target])
    runpy.run_path(str(folder / f"{name}.py"), run_name="__main__")
    printed = capsys.readouterr().out
    assert printed.count(": correct") + printed.count("are right") >= 2


@tw.kernel(X="M N", Y="M N")
def staged(X, Y):
    m, n = tw.block_index(tw.ceil_div(Y.shape, (64, 32)))
    held, moved = tw.shared((64, 32), X.dtype), tw.shared((32, 64), X.dtype)
    tw.copy(X.tile((64, 32), (m, n)), held)
    tw.barrier()
    tw.copy(held, moved.permute(1, 0))
    tw.barrier()
    tw.copy(moved.permute(1, 0), Y.tile((64, 32), (m, n)))


@pytest.mark.parametrize(("columns", "sectors"), [(256, 8192), (255, 9952)])
def test_the_checker_counts_as_many_sectors(columns, sectors) -> None:
    """8192 sectors are all bytes by 32; rows of 255 elements begin anywhere, and requests share sectors."""
    x = np.random.default_rng(0).standard_normal((256, columns)).astype(np.float32)
    y = np.full_like(x, np.nan)
    report = staged.check(x, y)
    assert report.is_clean
    assert [count.touched for count in report.counters.sectors] == [sectors, sectors]


def transposing(X, Y):
    tw.copy(X.tile((32, 64), (0, 0)), Y.tile((64, 32), (0, 0)).permute(1, 0))


def filling(X, Y):
    held = tw.shared((64, 32), X.dtype)
    tw.copy(X.tile((32, 64), (0, 0)), held.permute(1, 0))
    tw.barrier()
    tw.copy(held, Y.tile((64, 32), (0, 0)))


@pytest.mark.parametrize("author", [transposing, filling])
def test_where_the_sides_disagree_global_memory_decides_and_of_two_the_target(author) -> None:
    kernel = tw.kernel(author, X="M N", Y="N M").trace(tw.like("f32", 32, 64), tw.like("f32", 64, 32))
    for op in shared_out(kernel):
        ends = [v.tensor for v in (op.source, op.target) if v.tensor.memory is Memory.GLOBAL]
        assert stride(ends[-1].view, op.spread.threads[0].dim) == 1


def softmax(X, Y):
    x = tw.load(X.tile((16, 64), (0, 0)), other=-float("inf"))
    weights = tw.exp(x - tw.reduce_max(x, dim=1))
    total = tw.fragment(X.tile((16, 64), (0, 0)), tw.f32, fill=0) + tw.reduce_sum(weights, dim=1)
    tw.copy(weights / total, Y.tile((16, 64), (0, 0)).partition())


@pytest.mark.parametrize("target", ["reference", "cpu"])
def test_loads_fragments_and_partitions_have_one_map(target) -> None:
    kernel = tw.kernel(softmax, X="M N", Y="M N")
    x = np.random.default_rng(0).standard_normal((13, 55))
    y = np.full(x.shape, np.nan)
    wanted = np.exp(x - x.max(1, keepdims=True))
    wanted /= wanted.sum(1, keepdims=True)
    x32, y32 = x.astype(np.float32), y.astype(np.float32)
    assert kernel(x32, y32, target=target).target == target
    # A dozen of roundings each: exponential, sum of 64, quotient.
    np.testing.assert_allclose(y32, wanted, rtol=128 * 2.0**-24)
    made = kernel.compile(tw.like("f32", 13, 64), tw.like("f32", 13, 64), target="cuda", arch="sm_80")
    assert made.kernel.threads == 128


def threads_of_copies(author, *arrays) -> tuple[int, list[int]]:
    names = "XY"[: len(arrays)]
    kernel = tw.kernel(author, **dict.fromkeys(names, "M N")).trace(*arrays)
    return kernel.threads, [op.spread.size_threads for op in kernel.walk() if is_by_threads(op)]


X = tw.like("f32", 256, 256)


def test_nothing_says_how_many_threads_there_are() -> None:
    def author(X):
        tw.copy(X.tile((64, 64), (0, 0)), tw.shared((64, 64), X.dtype))

    assert threads_of_copies(author, X) == (128, [128])


def test_a_small_tile_takes_no_more_threads_than_it_has_elements() -> None:
    def author(X):
        tw.copy(X.tile((4, 4), (0, 0)), tw.shared((4, 4), X.dtype))

    assert threads_of_copies(author, X) == (16, [16])


@pytest.mark.parametrize(("said", "all_threads"), [(256, 256), (96, 96), (100, 128), (32, 32), (8, 32)])
@pytest.mark.parametrize("first", [True, False])
def test_another_copy_says_it_before_or_after(said, all_threads, first) -> None:
    def author(X, Y):
        own, held = tw.shared((said, 64), X.dtype), tw.shared((96, 64), X.dtype)
        for speaks in (first, not first):
            if speaks:
                tw.copy(X.tile((said, 64), (0, 0)), own, threads=(said, 1))
            else:
                tw.copy(Y.tile((96, 64), (0, 0)), held)

    threads, copies = threads_of_copies(author, X, X)
    assert threads == all_threads
    assert sorted(copies) == sorted([said, all_threads])


def test_a_role_shares_out_to_its_own_threads() -> None:
    def author(X):
        held = tw.shared((64, 64), X.dtype)
        tw.copy(X.tile((64, 64), (0, 0)), held)
        with tw.role(warps=2):
            tw.copy(X.tile((64, 64), (0, 0)), held)
            with tw.role(warps=1):
                tw.copy(X.tile((64, 64), (0, 0)), held)
        with tw.role(warps=4, groups=2):
            tw.copy(X.tile((64, 64), (0, 0)), held)

    assert threads_of_copies(author, X) == (320, [256, 64, 32, 128])


def test_what_is_only_legal_with_the_right_number_is_recorded_with_it() -> None:
    """The first run adds a loaded value to a fragment of 64 threads before it knows that number."""

    def author(X):
        tile = X.tile((32, 64), (0, 0))
        x = tw.load(tile)
        y = tw.load(tile.partition(64))
        tw.copy(x + y, tile)

    assert threads_of_copies(author, X) == (64, [64, 64, 64])


def test_a_tile_of_unknown_extent_is_refused_where_it_is_copied() -> None:
    @tw.kernel(X="M N", Y="M N")
    def whole(X, Y):
        tw.copy(X, Y)

    with pytest.raises(tw.LegalityError, match="static tile only") as raised:
        whole.compile(X, X, target="reference")
    assert "tw.copy(X, Y)" in str(raised.value)


def test_an_order_of_accesses_needs_a_layout_of_threads() -> None:
    @tw.kernel(X="M N", Y="M N")
    def ordered(X, Y):
        tw.copy(X.tile((8, 8), (0, 0)), Y.tile((8, 8), (0, 0)), access_order=(0, 1))

    with pytest.raises(tw.LegalityError, match="nearest legal choice: a layout of threads"):
        ordered.compile(X, X, target="reference")
