"""Products of lists of arrays equal NumPy's, one by one, within a bound for each element."""

from __future__ import annotations

import mmap
import re
from typing import Any

import numpy as np
import pytest
from tests.far import MAP_NORESERVE

import tilewright as tw
from tilewright.checking.compare import Accumulation, gemm_bound
from tilewright.ops.lists import kernel_for, plan_lists
from tilewright.ops.wanted import Wanted
from tilewright.runtime.kernel import Bound
from tilewright.schedule import lists as in_kernels
from tilewright.targets.target import CUDA

pytestmark = pytest.mark.in_turns(3)

TARGETS = ("reference", "cpu")
MIXED = [(5, 7, 9), (0, 4, 4), (70, 33, 40), (3, 0, 5), (3, 8, 0), (64, 64, 64), (1, 90, 17)]
ALIGNED = [(16, 64, 32), (0, 32, 64), (40, 96, 64), (33, 32, 32)]


def strided(numbers: Any, kind: str, order: int, draw: np.random.Generator) -> Any:
    """Return the numbers in rows or columns, with or without gaps, forwards or backwards."""
    rows, columns = numbers.shape
    if order == 0:
        held = np.empty((rows, columns), kind)
    elif order == 1:
        held = np.empty((rows, columns + int(draw.integers(1, 9))), kind)[:, :columns]
    elif order == 2:
        held = np.empty((columns, rows + int(draw.integers(1, 9))), kind)[:, :rows].T
    elif order == 3:
        held = np.empty((2 * rows, 3 * columns), kind)[::2, ::3]
    else:
        held = np.empty((rows, columns), kind)[::-1]
    held[...] = numbers
    return held


def operands(
    shapes: list[tuple[int, int, int]], kind: str = "f32", seed: int = 0, orders: tuple[int, ...] = (0,)
) -> tuple[list[Any], list[Any]]:
    """Return A and B of each product, with alternating orders."""
    draw = np.random.default_rng(seed)
    dtype, scale = tw.dtype(kind).numpy, 20 if kind == "i8" else 1
    pairs = []
    for m, n, k in shapes:
        sides = (scale * draw.standard_normal(shape) for shape in ((m, k), (k, n)))
        pairs.append([strided(one, dtype, int(draw.choice(orders)), draw) for one in sides])
    return [a for a, _ in pairs], [b for _, b in pairs]


def poisoned(shapes: list[tuple[int, int, int]], kind: str) -> tuple[list[Any], list[Any]]:
    """Return outputs with gaps between rows, and the memory that contains them."""
    dtype = tw.dtype(kind)
    whole = [
        np.full((m + 2, n + 5), 99 if dtype.kind == "int" else np.nan, dtype.numpy) for m, n, _ in shapes
    ]
    return [one[1:-1, 2:-3] for one in whole], whole


def check(
    a: list[Any], b: list[Any], out: list[Any], bias: list[Any] | None = None, activate: Any = None
) -> None:
    """Check that every element of every product is within its bound."""
    assert len(out) == len(a)
    for at, (x, y, made) in enumerate(zip(a, b, out, strict=True)):
        kind = tw.dtype(made.dtype)
        whole = kind.kind == "int"
        exact, _, bound = gemm_bound(x, y, Accumulation(), tw.dtype("i32" if whole else "f64"))
        if bias is not None:
            exact = exact + bias[at].astype(np.float64)
            bound = bound + 2.0**-22 * (np.abs(exact) + bound)
        exact = exact if activate is None else activate(exact)
        rounded = 0.0 if whole else 2.0 ** -(kind.mantissa + 1) * (np.abs(exact) + bound) + 2.0**-24
        assert made.shape == exact.shape
        assert (np.abs(made.astype(np.float64) - exact) <= bound + rounded).all(), at


def check_around(out: list[Any], whole: list[Any]) -> None:
    """Check that memory outside the outputs is unchanged."""
    for inner, outer in zip(out, whole, strict=True):
        before = outer[0, 0]
        inner[...] = before
        assert np.array_equal(outer, np.full_like(outer, before), equal_nan=before != before)


@pytest.mark.in_turns(3)
@pytest.mark.parametrize("orders", [(0,), (2,), (1, 2, 3), (4, 0)], ids=str)
@pytest.mark.parametrize("target", TARGETS)
def test_products_of_any_extents(target: str, orders: tuple[int, ...]) -> None:
    a, b = operands(MIXED, orders=orders)
    out, whole = poisoned(MIXED, "f32")
    made = tw.grouped_matmul(a, b, out=out, target=target)
    assert [one is other for one, other in zip(made, out, strict=True)] == [True] * len(out)
    check(a, b, out)
    check_around(out, whole)


@pytest.mark.in_turns(3)
@pytest.mark.parametrize(("kind", "to"), [("f16", "f16"), ("bf16", "f32"), ("i8", "i32"), ("f64", "f64")])
@pytest.mark.parametrize("target", TARGETS)
def test_dtypes(target: str, kind: str, to: str) -> None:
    a, b = operands(ALIGNED, kind)
    made = tw.grouped_matmul(tuple(a), tuple(b), out_dtype=to, target=target)
    assert {tw.dtype(one.dtype).name for one in made} == {to}
    check(a, b, made)


@pytest.mark.parametrize("target", TARGETS)
def test_bias_and_activation(target: str) -> None:
    a, b = operands(MIXED, orders=(0, 2))
    draw = np.random.default_rng(1)
    bias = [draw.standard_normal(2 * n).astype(np.float32)[::2] for _, n, _ in MIXED]
    out, whole = poisoned(MIXED, "f32")
    tw.grouped_matmul(a, b, out=out, bias=bias, activation="relu", target=target)
    check(a, b, out, bias, lambda x: np.maximum(x, 0))
    check_around(out, whole)


@pytest.mark.parametrize("shapes", [[], [(0, 4, 5)], [(3, 0, 5), (0, 0, 0)], [(3, 5, 0)], [(9, 5, 7)]])
@pytest.mark.parametrize("target", TARGETS)
def test_little_to_do(target: str, shapes: list[tuple[int, int, int]]) -> None:
    a, b = operands(shapes)
    check(a, b, tw.grouped_matmul(a, b, target=target))


@pytest.mark.parametrize("target", TARGETS)
def test_a_plan_is_read_before_it_is_launched(target: str) -> None:
    """The plan of lists has the figures and the text of other plans, and launches on request."""
    a, b = operands(MIXED, orders=(0, 3))
    out, whole = poisoned(MIXED, "f32")
    plan = plan_lists({"a": a, "b": b, "out": out}, Wanted(target=target))
    moved = 4 * sum(m * k + k * n + m * n for m, n, k in MIXED)
    assert str(plan) == f"listed: 0 bytes of scratch, {moved} moved; {plan.reason}"
    assert all(np.isnan(one).all() for one in whole), "nothing was launched"
    result, replay, *_ = plan.launch()
    assert (replay is None) == (target == "reference"), "the reference reads arrays, not addresses"
    assert [one is other for one, other in zip(result, out, strict=True)] == [True] * len(out)
    check(a, b, result)
    check_around(out, whole)
    schedule = plan.kernels[0].constants["schedule"]
    assert (plan.target, plan.schedule) == (target, schedule)
    empty = plan_lists(dict(zip("ab", operands([(0, 4, 5)]), strict=True)), Wanted(target=target))
    assert (str(empty), empty.schedule) == ("no launch: the result is empty", None)


@pytest.mark.parametrize("target", TARGETS)
def test_what_is_done_to_sums_of_integers_loses_none_of_their_digits(target: str) -> None:
    """An addition in f32 would round these sums of more than 24 bits."""
    draw = np.random.default_rng(3)
    sides = [(draw.integers(90, 128, (3, k)), draw.integers(90, 128, (k, 5))) for k in (2100, 2400)]
    a, b = ([pair[side].astype(np.int8) for pair in sides] for side in (0, 1))
    bias = [np.arange(5, dtype=np.float32) + 0.5 for _ in sides]
    wanted = [x @ y for x, y in sides]
    assert any((sums.astype(np.float32) != sums).any() for sums in wanted)
    for words, added in (({"bias": bias}, bias[0]), ({"activation": "relu"}, 0.0)):
        made = tw.grouped_matmul(a, b, out_dtype="f64", target=target, **words)
        for sums, found in zip(wanted, made, strict=True):
            np.testing.assert_array_equal(found, sums + added)


def test_one_matrix_in_many_products() -> None:
    a, _ = operands([(9, 5, 7)] * 4)
    b = operands([(9, 5, 7)])[1][0]
    check(a, [b] * 4, tw.grouped_matmul(a, [b] * 4, target="cpu"))


def test_random_lists() -> None:
    draw = np.random.default_rng(5)
    for seed in range(12):
        count = int(draw.integers(1, 300 if seed % 6 == 0 else 20))
        sizes = draw.integers(0, 90, (count, 3)) * draw.integers(0, 2, (count, 1))
        shapes = [(int(m), int(n), int(k)) for m, n, k in sizes]
        a, b = operands(shapes, "f32", seed, (0, 1, 2) if seed % 2 else (1,))
        out, whole = poisoned(shapes, "f32")
        tw.grouped_matmul(a, b, out=out, target="cpu", schedule=ON_CPU)
        check(a, b, out)
        check_around(out, whole)


def test_lists_of_other_lengths_and_extents_share_a_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    planned, found = Bound.planned, []

    def noted(self: Bound, *given: Any) -> Any:
        made = planned(self, *given)
        found.append(made[0].prepared.executable)
        return made

    monkeypatch.setattr(Bound, "planned", noted)
    for shapes in (ALIGNED, ALIGNED[::-1], [*ALIGNED, (9, 16, 48)]):
        a, b = operands(shapes)
        check(a, b, tw.grouped_matmul(a, b, target="reference", schedule=SCHEDULE))
    assert [one.target for one in found] == ["reference"] * 3
    a, b = operands(ALIGNED)
    check(a, b, tw.grouped_matmul(a[::-1], b[::-1], target="cpu", schedule=ON_CPU)[::-1])
    check(a, b, tw.grouped_matmul(a * 70, b * 70, target="cpu", schedule=ON_CPU)[: len(a)])
    assert found[-1] is found[-2]
    assert found[-1].target == "cpu"


@pytest.mark.parametrize("fault", ["a dropped k", "another matrix", "an output at another place"])
def test_the_comparison_rejects(fault: str) -> None:
    a, b = operands(MIXED)
    made = tw.grouped_matmul(a, b, target="cpu")
    if fault == "a dropped k":
        made[0] -= np.outer(a[0][:, -1], b[0][-1])
    elif fault == "another matrix":
        made[5] = a[5] @ b[5].T
    else:
        made[0], made[2] = made[2], made[0]
    with pytest.raises(AssertionError):
        check(a, b, made)


SCHEDULE = tw.Schedule(tw.atoms.fma("f32", each=(4, 4)), (32, 32, 16), blocks=3)
ON_CPU = tw.Schedule(tw.atoms.fma("f32", lanes=(1, 1), each=(4, 4)), (32, 32, 16), blocks=3)


IN_TURNS = {"tile": (64, 64, 8), "warps": (2, 2), "stages": 2, "groups": 2}
IN_TURNS |= {"staging": "registers", "roles": "alternating"}


@pytest.mark.parametrize(
    "changes", [{}, {"swap_ab": True, "tile": (64, 32, 16)}, {"group_n": 2}, IN_TURNS], ids=str
)
def test_schedules(changes: dict[str, Any]) -> None:
    a, b = operands(MIXED, orders=(0, 2))
    given = {"atom": SCHEDULE.atom, "tile": SCHEDULE.tile, "blocks": 3}
    out, whole = poisoned(MIXED, "f32")
    tw.grouped_matmul(a, b, out=out, schedule=tw.Schedule(**given | changes), target="reference")
    check(a, b, out)
    check_around(out, whole)


def test_multiplies_in_the_background() -> None:
    a, b = operands(ALIGNED, "f16", orders=(0, 2))
    atom = tw.atoms.wgmma("f16", 32)
    schedule = tw.Schedule(atom, (64, 32, 64), (1, 1), 3, staging="cp_async", blocks=2)
    out, whole = poisoned(ALIGNED, "f16")
    tw.grouped_matmul(a, b, out=out, schedule=schedule, target="reference")
    check(a, b, out)
    check_around(out, whole)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"blocks": 0}, "blocks=0, one block for each tile; the extents and addresses of"),
        ({"split_k": 2}, "split_k=2; the extents and addresses of the arrays are known"),
        ({"balanced": True}, "balanced=True; the extents and addresses of the arrays are known"),
        ({"batches": 2}, "batches=2; the extents and addresses of the arrays are known"),
    ],
)
def test_schedules_that_know_no_lists(changes: dict[str, Any], words: str) -> None:
    a, b = operands(ALIGNED)
    given = {"atom": SCHEDULE.atom, "tile": SCHEDULE.tile, "blocks": 3}
    with pytest.raises(tw.ScheduleError, match=re.escape(words)):
        tw.grouped_matmul(a, b, schedule=tw.Schedule(**given | changes), target="reference")


def matrices(*shapes: tuple[int, ...], kind: Any = np.float32) -> list[Any]:
    return [np.zeros(shape, kind) for shape in shapes]


SHARED = np.zeros((4, 5), np.float32)


@pytest.mark.parametrize(
    ("change", "error", "words"),
    [
        ({"b": matrices((4, 5))}, tw.LaunchError, "1 arrays in b and 2 in a; nearest"),
        ({"b": np.zeros((2, 4, 5), np.float32)}, tw.LaunchError, "b is a single ndarray"),
        ({"b": matrices((4, 5), (6, 5))}, tw.LaunchError, "product 1: b[1] has K = 6, and a[1] has K = 7"),
        ({"a": matrices((3, 4), (7,))}, tw.LaunchError, "a[1] has shape (7,); nearest legal choice: (M, K)"),
        ({"out": matrices((3, 5), (2, 4))}, tw.LaunchError, "product 1: out[1] has M = 2, and a[1] has M"),
        ({"bias": matrices((5,), (4,))}, tw.LaunchError, "product 1: bias[1] has N = 4, and b[1] has N = 5"),
        (
            {"a": [*matrices((3, 4)), *matrices((1, 7), kind=np.float16)]},
            tw.DTypeError,
            "a[1] is f16, and a[0] is f32; nearest legal choice: one dtype for all of a",
        ),
        ({"b": matrices((4, 5), (7, 5), kind=np.float16)}, tw.DTypeError, "grouped_matmul of f32 and f16"),
        ({"out": [SHARED[:3], SHARED[2:3]]}, tw.LaunchError, "out[1] and out[0] share memory"),
        ({"a": [SHARED[:3, :4], np.zeros((1, 7), np.float32)], "out": [SHARED[1:4], SHARED[:1]]},
            tw.LaunchError, "share memory, or may"),
        ({"ends": np.zeros(2, np.int32)}, tw.LaunchError, "nearest legal choice: lists without ends"),
        ({"a": np.zeros((2, 2)), "b": np.zeros((1, 2, 2))}, tw.LaunchError, "ends is not given"),
        ({"activation": "elu"}, tw.LaunchError, "activation='elu'; choose one of"),
        ({"target": "cuda"}, tw.LaunchError, "target 'cuda' cannot reach arrays in host memory"),
    ],
)  # fmt: skip
def test_refusals(change: dict[str, Any], error: type[Exception], words: str) -> None:
    given: dict[str, Any] = {"a": matrices((3, 4), (1, 7)), "b": matrices((4, 5), (7, 5))}
    with pytest.raises(error) as caught:
        tw.grouped_matmul(**{"target": "cpu"} | given | change)
    assert words in str(caught.value)


def test_arrays_with_more_than_32_bits_between_them() -> None:
    (x, y), _ = operands([(40, 8, 24)] * 2)
    _, b = operands([(40, 8, 24)] * 2)
    room = mmap.mmap(-1, 1 << 35, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | MAP_NORESERVE)
    there = np.frombuffer(room, np.float32)
    a = [there[: x.size].reshape(x.shape), there[-y.size :].reshape(y.shape)]
    out = [there[1000:1320].reshape(40, 8), there[-2000:-1680].reshape(40, 8)]
    a[0][...], a[1][...] = x, y
    tw.grouped_matmul(a, b, out=out, target="cpu", schedule=ON_CPU)
    check([x, y], b, out)


def test_outputs_that_interleave_without_meeting_are_written() -> None:
    a, b = operands([(6, 8, 5)] * 2)
    whole = np.full((6, 16), np.nan, np.float32)
    out = [whole[:, :8], whole[:, 8:]]
    tw.grouped_matmul(a, b, out=out, target="cpu")
    check(a, b, out)


@pytest.mark.parametrize(("arch", "kind", "aligned"), [("sm_90a", "bf16", 16), ("sm_80", "f16", 2)])
def test_text_without_spills(arch: str, kind: str, aligned: int) -> None:
    made = compiled(arch, kind, aligned)
    assert (made.target, made.arch) == ("cuda", arch)
    assert f"copy_async<{aligned}>" in made.source or aligned < 4
    assert made.resources["spill_store_bytes"] == made.resources["stack_bytes"] == 0


def compiled(arch: str, kind: str, aligned: int) -> Any:
    """Return the kernel for lists of many large products; rows begin at multiples of ``aligned`` bytes."""
    dtype, machine = tw.dtype(kind), CUDA.architecture(arch)
    each = aligned // dtype.bytes
    spec = tw.TensorSpec(dtype, 3, 2, (1, 1, each), (1, each, 1), aligned, wide=True)
    specs = tuple((name, spec) for name in ("A", "B", "D"))
    kernel = kernel_for(specs, (8, 1024, 4096, 4096), Wanted(), machine, 132)
    buffer = tw.TensorSpec(dtype, 1, 0, (1,), (1,), aligned, wide=False)
    table = tw.TensorSpec("i64", 2, 1, (256, 1), (1, 1), 16, wide=False)
    return kernel.compile(*[buffer] * 4, table, 8, target="cuda", arch=arch)


@pytest.mark.parametrize(
    ("name", "fault"),
    [
        ("_first", lambda self, item: in_kernels.natural(FIRST(self, item) - 1)),
        ("_sizes", lambda self, item: {dim: size + 1 for dim, size in SIZES(self, item).items()}),
    ],
)
def test_a_wrong_table_is_found(name: str, fault: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The faults are in the search of an item and in its end, in kernels that the test expands with them."""
    monkeypatch.setattr(in_kernels.ListTiles, name, fault)
    a, b = operands(MIXED)
    # Of a schedule of its own, whose kernels nobody else uses.
    schedule = tw.Schedule(SCHEDULE.atom, SCHEDULE.tile, blocks=2 if name == "_first" else 5)

    def run() -> None:
        check(a, b, tw.grouped_matmul(a, b, schedule=schedule, target="reference"))

    with pytest.raises((tw.HazardError, AssertionError)):
        run()


FIRST, SIZES = in_kernels.ListTiles._first, in_kernels.ListTiles._sizes
