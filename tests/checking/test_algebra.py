"""Schedules and variants of one member are the same polynomial of their arrays; mutants differ from it."""

from __future__ import annotations

import zlib
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from tests.hazards.mutate_async import remade
from tests.problems import kernels

import tilewright as tw
from tilewright.ir import ops
from tilewright.ops.attending import flow
from tilewright.ops.complex_products import four_products
from tilewright.ops.products import scaled
from tilewright.passes.rewrite import rewrite_kernel
from tilewright.runtime.algebra import compared
from tilewright.symbolic.expr import add
from tilewright.targets.reference import run
from tilewright.targets.reference.residues import (
    PRIME,
    Residues,
    embedded,
    inverse,
    matrix_product,
    mixed,
    multiplied,
    residue,
)
from tilewright.testing import compare_algebra, residues
from tilewright.views.transforms import Tile

from .chains import LOOPS

pytestmark = pytest.mark.in_turns(3)

EXTENTS = (70, 40, 72)
"""M, N and K: two tiles and a ragged one; rows of whole 16 bytes, which bulk copies carry."""

SYNC = tw.Schedule(tw.atoms.MMA_F16, (32, 16, 32), warps=(2, 1), stages=3, staging="cp_async")
BULK = tw.Schedule(
    tw.atoms.wgmma("f16", 16),
    (64, 16, 64),
    stages=2,
    staging="tma",
    roles="cooperative",
    epilogue="staged",
)
PLAIN = tw.Schedule(tw.atoms.fma("f16", "f32", (4, 8), (2, 2)), (32, 16, 16), warps=(2, 1))

SCHEDULES = {
    "fma": PLAIN,
    "data-parallel": SYNC,
    "persistent": replace(SYNC, blocks=3),
    "persistent, bulk copies": replace(BULK, blocks=2),
    "ping-pong": replace(BULK, blocks=2, roles="ping-pong", groups=2),
    "overlapped": replace(BULK, blocks=2, epilogue="overlapped"),
    "swapped": replace(SYNC, swap_ab=True),
    "swapped, of wgmma": replace(BULK, swap_ab=True),
    "promoted": replace(SYNC, promote=2),
    "stream-K": replace(SYNC, split_k="stream", blocks=4),
    "stream-K, atomics": replace(SYNC, split_k="stream", blocks=4, reduction="atomic"),
    "stream-K, swapped": replace(SYNC, split_k="stream", blocks=4, swap_ab=True),
    "stream-K, bulk copies": replace(BULK, split_k="stream", blocks=3),
    **{
        f"split by {way}": replace(SYNC, split_k=3, reduction=way)
        for way in ("workspace", "reduce-scatter", "turnstile", "atomic", "cluster")
    },
    "split by workspace, bulk copies": replace(BULK, split_k=2),
}


def drawn(name: str, shape: tuple[int, ...]) -> Any:
    """Return residues of our choice, as Python's integers."""
    rng = np.random.default_rng([7, zlib.crc32(name.encode())])
    return rng.integers(0, PRIME, shape, np.uint64)


def exact(array: Any) -> Any:
    return array.astype(object)


def arrays(kind: str = "f16") -> tuple[Any, ...]:
    m, n, k = EXTENTS
    return tw.like(kind, m, k), tw.like(kind, k, n, order="F"), tw.like(kind, m, n)


def given() -> dict[str, Any]:
    a, b, _ = arrays()
    return {"A": drawn("A", a.shape), "B": drawn("B", b.shape)}


def product() -> Any:
    held = given()
    return exact(held["A"]) @ exact(held["B"]) % PRIME


@pytest.mark.in_turns(4)
@pytest.mark.parametrize("name", SCHEDULES)
def test_every_partition_is_the_product(name: str) -> None:
    found = residues(kernels.product.bind(schedule=SCHEDULES[name]), *arrays(), given=given())
    assert (exact(found["C"]) == product()).all()


@pytest.mark.parametrize("kind", ["f32", "f64", "bf16", "f8e4m3"])
def test_dtypes_make_no_difference(kind: str) -> None:
    found = residues(kernels.product, *arrays(kind), given=given())
    assert (exact(found["C"]) == product()).all()


@pytest.mark.parametrize(
    "name", ["data-parallel", "split by turnstile", "stream-K", "persistent, bulk copies"]
)
def test_what_is_done_with_the_sums(name: str) -> None:
    """Residues follow factors and added arrays.  ReLU and GELU are compared under two schedules."""
    a, b, c = arrays()
    numbers = (0.75, -1.25)
    found = residues(kernels.scaled.bind(schedule=SCHEDULES[name]), a, b, c, *numbers, given=given(), seed=3)
    alpha, beta = map(residue, numbers)
    before = exact(residues(kernels.scaled, a, b, c, 0.0, 1.0, given=given(), seed=3)["C"])
    assert (exact(found["C"]) == (alpha * product() + beta * before) % PRIME).all()
    bias = tw.like("f32", c.shape[1])
    for activation in ("relu", "gelu"):
        ways = (kernels.layer.bind(activation=activation, schedule=one) for one in (PLAIN, SCHEDULES[name]))
        compare_algebra(*ways, a, b, bias, c).raise_if_wrong()


def test_extremes_of_rows() -> None:
    a, b, c = arrays()
    whole = [replace(one, tile=(32, 48, 16)) for one in (PLAIN, replace(SYNC, split_k=2))]
    ways = (kernels.largest.bind(schedule=one) for one in whole)
    compare_algebra(*ways, a, b, c, tw.like("f16", c.shape[0])).raise_if_wrong()


def test_products_with_scales_and_a_bias() -> None:
    m, n, k = EXTENTS
    kinds = {"A": "f16", "B": "f8e4m3", "D": "f16", "scale_a": "f32", "scale_b": "f32", "bias": "f32"}
    shapes = {"A": (m, k), "B": (k, n), "D": (m, n), "scale_a": (m,), "scale_b": (n,), "bias": (n,)}
    like = {name: tw.like(kinds[name], shape) for name, shape in shapes.items()}
    held = {name: drawn(name, shape) for name, shape in shapes.items() if name != "D"}
    words = {"multiplied": tw.f16, "terms": frozenset(["scale_a", "scale_b", "bias"]), "activation": None}
    a, b, by_row, by_column, bias = map(exact, (held[x] for x in ("A", "B", "scale_a", "scale_b", "bias")))
    want = ((a @ b) * by_row[:, None] * by_column + bias) % PRIME
    found = residues(scaled(0).bind(**words), **like, alpha=1.0, given=held)
    assert (exact(found["D"]) == want).all()
    integers = np.random.default_rng(0).integers(-128, 128, (k, n)).astype(np.int8)
    del held["B"]
    found = residues(scaled(0).bind(**words), **like | {"B": integers}, alpha=1.0, given=held)
    want = ((a @ exact(integers)) * by_row[:, None] * by_column + bias) % PRIME
    assert (exact(found["D"]) == want).all()


def test_a_power_of_2_made_of_bits_and_its_inverse_change_nothing() -> None:
    @tw.kernel(X="N", Y="N")
    def split(X: Any, Y: Any, *, inverse: int) -> None:
        x = tw.load(X.tile((32,), (0,)).partition((32,)))
        power = (tw.bitcast(x, tw.u32) >> 23 & 0xFF) + 127 >> 1 << 23
        rest = x * tw.bitcast(inverse - power, tw.f32)
        tw.copy(rest * tw.bitcast(power, tw.f32), Y.tile((32,), (0,)).partition((32,)))

    given = {"X": drawn("X", (32,))}
    for both, is_same in ((254 << 23, True), (253 << 23, False)):
        found = residues(split.bind(inverse=both), tw.like("f32", 32), tw.like("f32", 32), given=given)
        assert (found["Y"] == given["X"]).all() == is_same


def test_interleaved_parts_are_a_complex_product() -> None:
    """There are a conjugate, alpha and beta; other complex products are in `members`."""
    m, n, k = EXTENTS
    shapes = {"a": (m, k), "b": (k, n), "c": (m, n), "out": (m, n)}
    like = {
        part: tw.like("f32", *shape, strides=(2 * shape[1], 2), align=4)
        for name, shape in shapes.items()
        for part in (name, f"{name}_im")
    }
    held = {part: drawn(part, one.shape) for part, one in like.items() if part[0] != "o"}
    numbers = {"alpha_re": 0.5, "alpha_im": -2.0, "beta_re": 3.0, "beta_im": 1.0}
    words = {"precision": "exact", "terms": frozenset(["alpha", "turn", "c", "turn c"])}
    of_f32 = replace(PLAIN, atom=tw.atoms.fma("f32", "f32", (4, 8), (2, 2)))
    bound = four_products(0, tw.f32).bind(**words, conjugates=(True, False, False), schedule=of_f32)
    found = residues(bound, **like, **numbers, given=held)
    a, b, c = (exact(held[x]) for x in ("a", "b", "c"))
    a_im, b_im, c_im = -exact(held["a_im"]), exact(held["b_im"]), exact(held["c_im"])
    re, im = a @ b - a_im @ b_im, a @ b_im + a_im @ b
    half = residue(0.5)
    want = (half * re + 2 * im + 3 * c - c_im) % PRIME, (half * im - 2 * re + 3 * c_im + c) % PRIME
    assert (exact(found["out"]) == want[0]).all()
    assert (exact(found["out_im"]) == want[1]).all()


def test_chains_of_two_products() -> None:
    """Under every schedule, the function gets complete sums."""
    m, k, n, p = 70, 24, 75, 40
    like = [tw.like("f16", 1, 1, *shape) for shape in ((1, m, k), (n, k), (n, p), (1, m, p))]
    ways = [flow.gemm_chain.bind(activation="silu", schedule=schedule) for schedule in LOOPS.values()]
    first, *others = (residues(way, *like) for way in ways)
    for other in others:
        compared(first, other).raise_if_wrong()


# ---------------------------------------------------------------- what is wrong is another polynomial


def _one_step_less(op: ops.Op) -> Any:
    return (replace(op, stop=add(op.stop, -1)),) if isinstance(op, ops.For) else None


def _shifted(dim: int, buffer: str) -> Callable[[ops.Op], Any]:
    def change(op: ops.Op) -> Any:
        if not (isinstance(op, ops.Reshape) and isinstance(op.transform, Tile)):
            return None
        if op.source.buffer.name != buffer:
            return None
        at = list(op.transform.at)
        at[dim] = add(at[dim], 1)
        return (remade(op, transform=replace(op.transform, at=tuple(at))),)

    return change


def _twice(op: ops.Op) -> Any:
    return (op, op) if isinstance(op, ops.Mma) else None


def _negated(op: ops.Op) -> Any:
    return (replace(op, negative=True),) if isinstance(op, ops.Mma) else None


MUTANTS: dict[str, Callable[[ops.Op], Any]] = {
    "a step of K is dropped": _one_step_less,
    "every product is added twice": _twice,
    "products are subtracted": _negated,
    "another tile of A along K": _shifted(1, "A"),
    "other rows of A": _shifted(0, "A"),
    "other columns of B": _shifted(1, "B"),
}


@pytest.mark.parametrize("name", MUTANTS)
def test_mutants_are_found(name: str) -> None:
    bound = kernels.product.bind(schedule=replace(SYNC, stages=1, staging="direct"))
    numbers = {"A": (64, 64), "B": (64, 32), "C": (64, 32)}
    traced = bound.trace(*(tw.like("f16", shape) for shape in numbers.values()))
    changed = []

    def change(op: ops.Op, rewriter: Any) -> Any:
        made = MUTANTS[name](op)
        changed.extend([op] if made is not None else [])
        return made

    mutant = rewrite_kernel(traced, change)
    assert changed
    found = []
    for kernel in (traced, mutant):
        held = {x: drawn(x, shape) for x, shape in numbers.items()}
        run(kernel, held, check=False, numbers=Residues())
        found.append(held)
    want = exact(found[0]["A"]) @ exact(found[0]["B"]) % PRIME
    assert (exact(found[0]["C"]) == want).all()
    wrong = compared({"C": found[0]["C"]}, {"C": found[1]["C"]})
    assert wrong.wrong > wrong.size // 4, "most of the elements tell"
    with pytest.raises(tw.WrongResultError, match="not equal as algebra"):
        wrong.raise_if_wrong()


def test_elements_that_are_not_written_are_wrong() -> None:
    @tw.kernel(X="N", Y="N")
    def half(X, Y):
        tw.copy(X.tile((32,), (0,)).partition((32,)), Y.tile((32,), (0,)).partition((32,)))

    wrong = compare_algebra(half, half, tw.like("f32", 40), tw.like("f32", 40))
    assert (wrong.wrong, wrong.index) == (8, (32,))


# ---------------------------------------------------------------- the field, and what has no residues


def test_arithmetic_is_that_of_the_field() -> None:
    rng = np.random.default_rng(1)
    ends = np.array([0, 1, PRIME - 1, 1 << 60, (1 << 31) - 1], np.uint64)
    a, b = (
        np.hstack([rng.integers(0, PRIME, (6, 2100), np.uint64), np.tile(ends, (6, 1))]) for _ in range(2)
    )
    x, y = exact(a), exact(b)
    assert (exact(matrix_product(a, b)) == x @ y.T % PRIME).all()
    assert (exact(multiplied(a, b)) == x * y % PRIME).all()
    assert (multiplied(inverse(a), a) == (a != 0)).all()
    assert len(np.unique(mixed(a))) == len(np.unique(a)), "different arguments have different values"
    given = np.float16([-2.5, 0.1, 2.0**-24])
    wanted = [int(number * 2**24) % PRIME for number in given.astype(np.float64)]
    assert (exact(embedded(given)) * 2**24 % PRIME == wanted).all()


def test_what_has_no_residues_is_refused() -> None:
    @tw.kernel(X="N", Y="N")
    def bits(X, Y):
        x = tw.load(X.tile((32,), (0,)).partition((32,)))
        tw.copy(tw.bitcast(x, tw.i32), Y.tile((32,), (0,)).partition((32,)))

    with pytest.raises(tw.DTypeError, match="bits of f32 as i32: residues modulo"):
        residues(bits, tw.like("f32", 32), tw.like("i32", 32))
    with pytest.raises(tw.LaunchError, match="must be uint64 of shape"):
        residues(kernels.product, *arrays(), given={"A": np.zeros(3)})
    with pytest.raises(tw.LaunchError, match="nearest legal choice: one of A, B, C"):
        residues(kernels.product, *arrays(), given={"X": np.zeros(3)})
    with pytest.raises(tw.LaunchError, match="is no kernel"):
        residues(len)
