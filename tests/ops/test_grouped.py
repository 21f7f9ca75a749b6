"""Products of groups of rows equal NumPy's, group by group, within a bound for each element."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tests.schedule.small import CASES

import tilewright as tw
from tilewright.checking.compare import Accumulation, gemm_bound
from tilewright.lang.control import index
from tilewright.lang.scalars import maximum, minimum
from tilewright.ops.products import grouped
from tilewright.schedule.schedule import Schedule
from tilewright.schedule.work import RowGroups

pytestmark = pytest.mark.in_turns(3)

TARGETS = ("reference", "cpu")
ENDS = {
    "uneven": [3, 3, 45, 46, 100, 100, 130],
    "one": [130],
    "none": [0, 0, 0],
    "beyond": [-5, 40, 999],
    "even": [33, 66, 99, 130],
}


def operands(
    ends: list[int], kind: str = "f32", seed: int = 0, shape: tuple[int, int, int] = (130, 35, 50)
) -> Any:
    rng = np.random.default_rng(seed)
    t, k, n = shape
    numbers = (rng.standard_normal((t, k)), rng.standard_normal((len(ends), k, n)))
    scale = 20 if kind == "i8" else 1
    return [(scale * one).astype(tw.dtype(kind).numpy) for one in numbers]


def parts(ends: list[int], rows: int) -> list[slice]:
    """Return the rows of each group, as the documentation defines them."""
    found, begin = [], 0
    for end in ends:
        last = min(max(end, begin), rows)
        found.append(slice(begin, last))
        begin = last
    return found


def check(
    a: Any, b: Any, ends: list[int], c: Any, before: float, activate: Any = None, bias: Any = None
) -> None:
    """Check that every row of a group is within its bound, and that other rows are unchanged."""
    out, written = tw.dtype(c.dtype), 0
    for group, rows in enumerate(parts(ends, a.shape[0])):
        exact, _, bound = gemm_bound(
            a[rows], b[group], Accumulation(), tw.dtype("i32" if out.kind == "int" else "f64")
        )
        if bias is not None:
            exact = exact + bias[group].astype(np.float64)
            bound = bound + 2.0**-22 * (np.abs(exact) + bound)
        exact = exact if activate is None else activate(exact)
        rounded = (
            0.0 if out.kind == "int" else 2.0 ** -(out.mantissa + 1) * (np.abs(exact) + bound) + 2.0**-24
        )
        assert (np.abs(c[rows].astype(np.float64) - exact) <= bound + rounded).all(), group
        written += rows.stop - rows.start
    rest = c[written:].astype(np.float64)
    assert (np.isnan(rest) if np.isnan(before) else rest == before).all()


@pytest.mark.parametrize("name", ENDS)
@pytest.mark.parametrize("target", TARGETS)
def test_every_row_of_every_group(name: str, target: str) -> None:
    ends = ENDS[name]
    a, b = operands(ends)
    whole = np.full((130, 64), np.nan, np.float32)
    out = whole[:, 3:53]  # rows that are further apart than they are long
    tw.grouped_matmul(a, b, np.asarray(ends, np.int32), out, target=target)
    check(a, b, ends, out, np.nan)
    assert np.isnan(whole[:, :3]).all()
    assert np.isnan(whole[:, 53:]).all()


@pytest.mark.in_turns(3)
@pytest.mark.parametrize(("kind", "out"), [("f16", "f16"), ("bf16", "f32"), ("i8", "i32"), ("f64", "f64")])
@pytest.mark.parametrize("target", TARGETS)
def test_dtypes_and_orders(kind: str, out: str, target: str) -> None:
    ends = ENDS["uneven"]
    a, b = operands(ends, kind)
    b = np.ascontiguousarray(b.transpose(0, 2, 1)).transpose(0, 2, 1)
    made = np.full((130, 50), 99, tw.dtype(out).numpy)
    tw.grouped_matmul(np.asfortranarray(a), b, np.asarray(ends, np.int64), made, target=target)
    check(a, b, ends, made, 99)


@pytest.mark.parametrize(("kind", "out"), [("f32", "f32"), ("bf16", "f32"), ("i8", "i32"), ("f64", "f64")])
@pytest.mark.parametrize("name", ["uneven", "none", "beyond"])
@pytest.mark.parametrize("target", TARGETS)
def test_groups_along_k(name: str, kind: str, out: str, target: str) -> None:
    ends, rng = ENDS[name], np.random.default_rng(3)
    a, b = (rng.standard_normal((130, n)) * (20 if kind == "i8" else 1) for n in (35, 50))
    a, b = a.astype(tw.dtype(kind).numpy), b.astype(tw.dtype(kind).numpy)
    found = parts(ends, 130)
    if kind != "i8":  # no group has the rows after the last end
        a[found[-1].stop :] = b[found[-1].stop :] = np.nan
    bias = None if kind == "i8" else rng.standard_normal((len(ends), 50)).astype(np.float32)
    whole = np.full((len(ends), 35, 64), 99, tw.dtype(out).numpy)
    made = whole[..., 3:53]
    tw.grouped_matmul(a.T, b, np.asarray(ends, np.int64), made, bias=bias, target=target)
    for group, rows in enumerate(found):
        exact, _, bound = gemm_bound(
            a[rows].T, b[rows], Accumulation(), tw.dtype("i32" if kind == "i8" else "f64")
        )
        exact = exact if bias is None else exact + bias[group].astype(np.float64)
        rounded = 0.0 if kind == "i8" else 2.0**-22 * (np.abs(exact) + bound)
        assert (np.abs(made[group].astype(np.float64) - exact) <= bound + rounded).all(), group
    assert (whole[..., :3] == 99).all()
    assert (whole[..., 53:] == 99).all()


@pytest.mark.parametrize("target", TARGETS)
def test_terms_of_groups_along_k(target: str) -> None:
    """Whole numbers, so that each element is exact."""
    rng, ends = np.random.default_rng(4), np.int32([5, 5, 40])
    a, b, c, factor, bias = (
        rng.integers(-3, 4, shape).astype(np.float32)
        for shape in ((40, 9), (40, 11), (9, 11), (3, 9, 1), (3, 11))
    )
    made = tw.grouped_matmul(
        *(a.T, b, ends),
        alpha=0.5,
        beta=-2.0,
        c=c,
        bias=bias,
        activation="relu",
        multiply=factor,
        dropout=0.5,
        seed=3,
        residual=c,
        target=target,
    )
    kept = tw.testing.philox(np.arange(made.size).reshape(made.shape), 3, 0) >= 2**31
    for group, rows in enumerate(parts([5, 5, 40], 40)):
        value = np.maximum(0.5 * (a[rows].T @ b[rows]) - 2 * c + bias[group], 0) * factor[group]
        assert np.array_equal(made[group], np.where(kept[group], 2 * value, 0) + c)
    unread = tw.grouped_matmul(
        np.full((9, 40), np.nan, np.float32), b, ends, alpha=0, bias=bias, target=target
    )
    assert np.array_equal(unread, np.broadcast_to(bias[:, None], (3, 9, 11)))


@pytest.mark.parametrize("target", TARGETS)
def test_bias_and_activation(target: str) -> None:
    ends = ENDS["uneven"]
    a, b = operands(ends)
    bias = np.random.default_rng(1).standard_normal((len(ends), 50)).astype(np.float32)
    made = tw.grouped_matmul(a, b, np.asarray(ends, np.int32), bias=bias, activation="relu", target=target)
    check(a, b, ends, made, np.nan, lambda x: np.maximum(x, 0), bias)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize(
    ("shape", "ends"), [((0, 5, 7), [0, 0]), ((9, 0, 7), [4, 9]), ((9, 5, 0), [9]), ((9, 5, 7), [])]
)
def test_nothing_to_do(shape: tuple[int, int, int], ends: list[int], target: str) -> None:
    a, b = operands(ends, shape=shape)
    made = np.full((shape[0], shape[2]), 7, np.float32)
    tw.grouped_matmul(a, b, np.asarray(ends, np.int32), made, target=target)
    check(a, b, ends, made, 7)


def test_random_groups() -> None:
    draw = np.random.default_rng(5)
    for seed in range(20):
        groups, rows = int(draw.integers(1, 40)), int(draw.integers(1, 200))
        ends = sorted(int(end) for end in draw.integers(0, rows + 1, groups))
        a, b = operands(ends, "f32", seed, (rows, int(draw.integers(1, 90)), int(draw.integers(1, 90))))
        made = np.full((rows, b.shape[2]), np.nan, np.float32)
        tw.grouped_matmul(a, b, np.asarray(ends, np.int32), made, target="cpu")
        check(a, b, ends, made, np.nan)


@pytest.mark.parametrize("fault", ["a dropped k", "another matrix", "a row too many"])
def test_the_comparison_rejects(fault: str) -> None:
    ends = ENDS["uneven"]
    a, b = operands(ends)
    made = tw.grouped_matmul(a, b, np.asarray(ends, np.int32), target="cpu")
    if fault == "a dropped k":
        made[5] -= a[5, -1] * b[2, -1]
    elif fault == "another matrix":
        made[45] = a[45] @ b[2]
    else:
        ends = [*ends[:-1], 129]
    with pytest.raises(AssertionError):
        check(a, b, ends, made, np.nan)


@pytest.mark.parametrize(
    ("change", "error", "words"),
    [
        ({"a": np.zeros(4, np.float32)}, tw.LaunchError, "a has shape (4,); nearest legal choice: (T, K)"),
        ({"ends": np.zeros(3, np.int32)}, tw.LaunchError, "ends has G = 3, and b has G = 2"),
        ({"b": np.zeros((5, 2), np.float32)}, tw.LaunchError, "b has T = 5, and a has T = 4"),
        ({"ends": np.zeros(2, np.float32)}, tw.DTypeError, "ends is f32; nearest legal choice: i32 or i64"),
        ({"b": np.zeros((2, 3, 5), np.float32)}, tw.LaunchError, "b has K = 3, and a has K = 4"),
        ({"b": np.zeros((2, 4, 5), np.float16)}, tw.DTypeError, "grouped_matmul of f32 and f16"),
        ({"bias": np.zeros((2, 4), np.float32)}, tw.LaunchError, "bias has N = 4, and b has N = 5"),
        ({"activation": "elu"}, tw.LaunchError, "activation='elu'; choose one of"),
    ],
)
def test_refusals(change: dict[str, Any], error: type[Exception], words: str) -> None:
    given: dict[str, Any] = {
        "a": np.zeros((6, 4), np.float32),
        "b": np.zeros((2, 4, 5), np.float32),
        "ends": np.zeros(2, np.int32),
    }
    with pytest.raises(error) as caught:
        tw.grouped_matmul(**given | change, target="cpu")
    assert words in str(caught.value)


def test_a_result_that_is_an_operand_is_refused() -> None:
    a = np.zeros((6, 4), np.float32)
    with pytest.raises(tw.LaunchError, match="out and a share memory"):
        tw.grouped_matmul(a, np.zeros((2, 4, 4), np.float32), np.int32([1, 6]), a, target="cpu")


def test_ends_that_descend_are_found_by_the_reference() -> None:
    a, b = operands([0, 0, 0])
    with pytest.raises(tw.HazardError, match="write-write race"):
        tw.grouped_matmul(a, b, np.int32([60, 30, 130]), target="reference")


SCHEDULE = Schedule(tw.atoms.fma("f32", each=(4, 4)), (32, 32, 16))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"split_k": 2}, "split_k=2; the sizes of the groups of m are known only on the device"),
        ({"balanced": True}, "balanced=True; the sizes of the groups of m are known only on the device"),
        ({"batches": 2}, "a kernel with groups has no other batches"),
    ],
)
def test_schedules_that_know_no_groups(changes: dict[str, Any], words: str) -> None:
    a, b = operands([50, 130])
    schedule = Schedule(SCHEDULE.atom, SCHEDULE.tile, **changes)
    with pytest.raises(tw.ScheduleError) as caught:
        tw.grouped_matmul(a, b, np.int32([50, 130]), schedule=schedule, target="reference")
    assert words in str(caught.value)


@pytest.mark.parametrize("arch", ["sm_90a", "sm_80"])
def test_text_without_spills(arch: str) -> None:
    given = (tw.like("bf16", 4096, 4096), tw.like("bf16", 8, 4096, 4096), tw.like("i32", 8))
    kernel = grouped(tw.f32).bind(precision="exact", terms=frozenset(), activation=None)
    made = kernel.compile(
        *given, tw.like("bf16", 8, 4096), tw.like("bf16", 4096, 4096), target="cuda", arch=arch
    )
    assert made.target == "cuda"
    assert ("wgmma" in made.source) == (arch == "sm_90a")
    assert made.resources["spill_store_bytes"] == made.resources["stack_bytes"] == 0


@pytest.mark.parametrize("fault", ["begins a row early", "ends a row late", "a number too many"])
def test_a_wrong_group_is_found(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The faults are in the search of groups, in kernels that the test expands with them."""
    begin, find = RowGroups._begin, RowGroups.find
    if fault == "begins a row early":
        monkeypatch.setattr(RowGroups, "_begin", lambda self, group: maximum(begin(self, group) - 1, 0))
    elif fault == "a number too many":
        monkeypatch.setattr(RowGroups, "find", lambda self, number: find(self, number + 1))
    else:
        monkeypatch.setattr(
            RowGroups, "_end", lambda self, group: minimum(index(self.ends[group]) + 1, self.extent)
        )
    a, b = operands(ENDS["uneven"])
    ends = np.asarray(ENDS["uneven"], np.int32)
    flawed = grouped.__wrapped__(tw.f32).bind(  # a kernel of its own, which nobody else uses
        precision="exact", terms=frozenset(), activation=None, schedule=SCHEDULE
    )
    made = np.full((130, 50), np.nan, np.float32)

    def run() -> None:
        flawed(a, b, ends, b[:, 0], made, target="reference")
        check(a, b, ENDS["uneven"], made, np.nan)

    with pytest.raises((tw.HazardError, AssertionError)):
        run()


AMD_ALONE = ("alternating", "registers")
"""Roles and staging of eight alternating waves."""

FORMS = [
    name
    for name, case in CASES.items()
    if name.startswith("groups") and (case.schedule.roles, case.schedule.staging) != AMD_ALONE
]


@pytest.mark.in_turns(3)
@pytest.mark.parametrize("name", FORMS)
def test_every_form_is_machine_code(name: str) -> None:
    case = CASES[name]
    made = case.bound.compile(*case.arrays(case.shape(3)).values(), target="cuda", arch="sm_90a")
    assert (made.target, made.schedule.tile) == ("cuda", case.schedule.tile)
    assert made.resources["spill_store_bytes"] == made.resources["stack_bytes"] == 0
