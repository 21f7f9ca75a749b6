"""Lists of arrays that bulk copies load by tensor maps in memory: products, faults, choices, text."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

import tilewright as tw
from tilewright.ir.copies import is_bulk_store
from tilewright.ops.lists import kernel_for
from tilewright.ops.wanted import Wanted
from tilewright.runtime.arrays import describe
from tilewright.runtime.kernel import Bound
from tilewright.runtime.listed import ListShape
from tilewright.schedule import bulk, lists
from tilewright.schedule.epilogue import staged as epilogue
from tilewright.schedule.question import coarse
from tilewright.targets.target import CUDA

from .test_lists import check, check_around, operands, poisoned

pytestmark = pytest.mark.in_turns(3)

UNEVEN = [(16, 64, 32), (0, 32, 64), (40, 100, 72), (5, 0, 16), (3, 8, 0), (1, 33, 200), (70, 130, 65)]
WGMMA = tw.Schedule(
    tw.atoms.wgmma("f16", 64), (64, 64, 64), stages=3, staging="tma", roles="cooperative", blocks=3
)


def changed(schedule: tw.Schedule, **changes: Any) -> tw.Schedule:
    """The schedule with other fields."""
    kept = {name: getattr(schedule, name) for name in ("stages", "staging", "roles", "blocks")}
    atom, tile = changes.pop("atom", schedule.atom), changes.pop("tile", schedule.tile)
    return tw.Schedule(atom, tile, **kept | changes)


def apart(arrays: list[Any], seed: int, by_columns: bool) -> list[Any]:
    """Return the arrays in separate memory, in rows or columns that begin at multiples of 16 bytes.

    The memory between rows, and before and after them, holds 99.
    """
    draw, made = np.random.default_rng(seed), []
    for one in arrays:
        rows, columns = one.shape[::-1] if by_columns else one.shape
        unit = 16 // one.itemsize
        length = (-(-columns // unit) + int(draw.integers(1, 4))) * unit
        held = np.full((rows + 2, length), 99, one.dtype)[1:-1, unit : unit + columns]
        held[...] = one.T if by_columns else one
        made.append(held.T if by_columns else held)
    return made


@pytest.fixture
def staged(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str, bool]]:
    """For each kernel run, note its target, its staging, and whether bulk copies store results."""
    planned, found = Bound.planned, []

    def noted(self: Bound, *given: Any) -> Any:
        made = planned(self, *given)
        ran = made[0].prepared.executable
        stores = any(is_bulk_store(op) for op in ran.kernel.walk())
        found.append((ran.target, self.constants["schedule"].staging, stores))
        return made

    monkeypatch.setattr(Bound, "planned", noted)
    return found


@pytest.mark.parametrize(
    ("a_by", "b_by", "changes"),
    [
        (False, False, {"epilogue": "staged"}),
        (True, True, {"atom": tw.atoms.wgmma("f16", 128), "tile": (128, 128, 64), "groups": 2, "group_m": 2}),
        (True, False, {"roles": "ping-pong", "groups": 2, "blocks": 2, "group_n": 2}),
        (False, True, {"swap_ab": True, "atom": tw.atoms.wgmma("f16", 16), "tile": (64, 16, 128)}),
    ],
    ids=["rows", "columns of two groups", "ping-pong", "swapped"],
)
def test_products_of_any_extents(
    a_by: bool, b_by: bool, changes: dict[str, Any], staged: list[tuple[str, str, bool]]
) -> None:
    a, b = operands(UNEVEN, "f16")
    a, b = apart(a, 1, a_by), apart(b, 2, b_by)
    bias = [np.random.default_rng(3).standard_normal(n).astype(np.float16) for _, n, _ in UNEVEN]
    out, whole = poisoned(UNEVEN, "f16")
    tw.grouped_matmul(a, b, out=out, bias=bias, schedule=changed(WGMMA, **changes), target="reference")
    check(a, b, out, bias)
    check_around(out, whole)
    assert staged == [("reference", "tma", False)]


STORED = [(16, 64, 32), (0, 32, 64), (40, 104, 72), (8, 0, 16), (8, 8, 0), (24, 40, 200), (72, 136, 65)]


@pytest.mark.parametrize("by_columns", [False, True], ids=["rows", "columns"])
@pytest.mark.parametrize("roles", ["cooperative", "ping-pong"])
def test_results_that_bulk_copies_store(
    roles: str, by_columns: bool, staged: list[tuple[str, str, bool]]
) -> None:
    a, b = operands(STORED, "f16")
    a, b = apart(a, 1, False), apart(b, 2, False)
    out = apart([np.full((m, n), np.nan, np.float32) for m, n, _ in STORED], 3, by_columns)
    changes = {"roles": roles, "groups": 2, "tile": (64 if roles == "ping-pong" else 128, 64, 64)}
    tw.grouped_matmul(
        a, b, out=out, schedule=changed(WGMMA, epilogue="staged", **changes), target="reference"
    )
    check(a, b, out)
    for one in out:
        one[...] = 99
        assert (one.base == 99).all(), "nothing else is written"
    assert staged == [("reference", "tma", True)]


@pytest.mark.parametrize(
    ("kind", "to", "atom", "depth"),
    [("i8", "i32", tw.atoms.wgmma("i8", 32), 128), ("bf16", "f32", tw.atoms.wgmma("bf16", 32), 64)],
)
def test_dtypes(kind: str, to: str, atom: Any, depth: int, staged: list[tuple[str, str, bool]]) -> None:
    a, b = operands(UNEVEN[1:4], kind)
    a, b = apart(a, 1, by_columns=False), apart(b, 2, by_columns=True)
    schedule = changed(WGMMA, atom=atom, tile=(64, 32, depth))
    made = tw.grouped_matmul(a, b, out_dtype=to, schedule=schedule, target="reference")
    check(a, b, made)
    assert staged == [("reference", "tma", False)]


def test_arrays_that_lie_elsewhere_have_other_maps() -> None:
    """The lists have the extents and strides of known ones, and other addresses."""
    a, b = operands(UNEVEN[:3], "f16", seed=1)
    first, second = apart(a, 1, False), apart(b, 2, False)
    room = [np.zeros((*one.base.shape,), one.dtype) for one in (*first, *second)]
    others = [one[1:-1, 8 : 8 + old.shape[1]] for one, old in zip(room, (*first, *second), strict=True)]
    for one, old in zip(others, (*first, *second), strict=True):
        one[...] = 2 * old
    for x, y in ((first, second), (others[:3], others[3:])):
        check(x, y, tw.grouped_matmul(x, y, schedule=WGMMA, out_dtype="f32", target="reference"))


NO_FENCE = "tw.hopper.acquire_map of the tensor is missing before"


@pytest.mark.parametrize(
    ("fault", "words", "blocks"),
    [
        ("no fence before loads", NO_FENCE, 4),
        ("no fence before stores", NO_FENCE, 5),
        ("the map of another array", "which is none of", 6),
    ],
)
def test_faults_are_found(fault: str, words: str, blocks: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The faults are in kernels that the test expands, for schedules that no other test uses."""
    if fault.startswith("no fence"):
        room = bulk if fault.endswith("loads") else epilogue
        monkeypatch.setattr(room, "acquire_map", lambda matrix: None)
    else:
        by_map = lists.by_map
        monkeypatch.setattr(lists, "by_map", lambda *given: by_map(*given[:2], 0, given[3]))
    a, b = operands(STORED[:3], "f16")
    a, b = apart(a, 1, False), apart(b, 2, False)
    schedule = changed(WGMMA, blocks=blocks, epilogue="staged")
    with pytest.raises(tw.HazardError) as caught:
        tw.grouped_matmul(a, b, schedule=schedule, target="reference")
    assert words in str(caught.value)


def chosen(machine: str, aligned: int, extents: tuple[int, int, int, int], *, signed: bool = False) -> Any:
    """Return the kernel for lists of bf16, by the bytes that divide the addresses of rows."""
    each = aligned // 2
    spec = tw.TensorSpec("bf16", 3, 2, (1, 1, each), (16, each, 1), aligned, wide=True, signed=signed)
    specs = tuple((name, spec) for name in ("A", "B", "D"))
    return kernel_for(specs, extents, Wanted(), CUDA.architecture(machine), 132)


LARGE = (8, 1024, 4096, 4096)


@pytest.mark.parametrize(
    ("machine", "aligned", "extents", "given", "expected"),
    [
        ("sm_90a", 16, LARGE, {}, ("tma", "wgmma")),
        ("sm_90a", 16, (8, 16, 4096, 4096), {}, ("tma", "wgmma")),
        ("sm_90a", 16, LARGE, {"signed": True}, ("cp_async", "wgmma")),
        ("sm_90a", 4, LARGE, {}, ("cp_async", "wgmma")),
        ("sm_90a", 2, LARGE, {}, ("cp_async", "mma")),
        ("sm_90a", 16, (256, 64, 64, 64), {}, ("cp_async", "mma")),
        ("sm_80", 16, LARGE, {}, ("cp_async", "mma")),
    ],
)
def test_what_is_chosen(
    machine: str, aligned: int, extents: Any, given: dict[str, bool], expected: tuple[str, str]
) -> None:
    schedule = chosen(machine, aligned, extents, **given).constants["schedule"]
    assert (schedule.staging, "wgmma" if schedule.atom.asynchronous else "mma") == expected
    assert schedule.blocks % 132 == 0


def test_text_without_spills() -> None:
    buffer = tw.TensorSpec("bf16", 1, 0, (1,), (1,), 16, wide=False)
    table = tw.TensorSpec("i64", 2, 1, (256, 16), (16, 1), 16, wide=False)
    made = chosen("sm_90a", 16, LARGE).compile(*[buffer] * 4, table, 8, target="cuda", arch="sm_90a")
    moves = re.findall(
        r"tma_\w+_2d\(\(const tensor_map_t\*\)\(table \+ (\w+)\*table_stride0 \+ (\d+)\)", made.source
    )
    assert {column for _, column in moves} == {"16", "32", "48"}
    seen = re.findall(r"acquire_map\(\(const tensor_map_t\*\)\(table \+ (.*?)\)\)", made.source)
    assert {f"{item}*table_stride0 + {column}" for item, column in moves} == set(seen)
    assert "__grid_constant__" not in made.source, "maps are passed in memory alone"
    assert made.resources["spill_store_bytes"] == made.resources["stack_bytes"] == 0
    assert tw.ir.print_kernel(tw.ir.parse_kernel(made.ir)) == made.ir


@pytest.mark.parametrize("fits", [True, False], ids=["multiples of 16 bytes", "others"])
def test_classes_of_lists(fits: bool) -> None:
    """An array without elements or with one row may have any strides; one unsuitable array decides."""
    held = [np.zeros((4, 24), np.float16), np.zeros((1, 7), np.float16), np.zeros((0, 5), np.float16)]
    held += [] if fits else [np.zeros((3, 12), np.float16)]
    spec = coarse(ListShape([describe(one) for one in held]).spec, CUDA.architecture("sm_90a"))
    assert spec.stride_divisors == (8, 8 if fits else 2, 1)


@tw.kernel(X="M N", table="G F")
def by_a_map(X: Any, table: Any, *, column: int, plain: bool, box: int) -> None:
    array = tw.hopper.by_map(X[0:8], table, tw.block_index(2), column)
    held = tw.shared((8, 64), X.dtype, swizzle=128)
    full = tw.hopper.mbarrier(1, arrivals=1)
    tw.barrier()
    tw.hopper.acquire_map(X if plain else array)
    tw.hopper.arrive(full[0], expect_bytes=(8 + box) * 128)
    tw.hopper.tma_load(array.tile((8, 64), (0, 0)), held, full[0])
    tw.hopper.tma_load(array.tile((box, 64), (0, 0)), held.tile((box, 64), (0, 0)), full[0])


@pytest.mark.parametrize(
    ("given", "table", "words"),
    [
        ({}, "f32", "tensor maps lie in rows of table, of rank 2 and f32"),
        (
            {"column": 4},
            "i64",
            "the tensor map at [block_m, 4] of table begins at no known multiple of 8 integers",
        ),
        ({"plain": True}, "i64", "the launch itself passes the tensor maps of X"),
        ({"box": 4}, "i64", "boxes that span (8, 64) and (4, 64) elements by one tensor map"),
    ],
)
def test_refusals(given: dict[str, Any], table: str, words: str) -> None:
    made = by_a_map.bind(**{"column": 0, "plain": False, "box": 8} | given)
    broken = tw.ir.violations(made.trace(tw.like("f16", (16, 64)), tw.like(table, (2, 16))))
    assert words in "\n".join(one.message for one in broken)
    assert all(one.nearest for one in broken)
