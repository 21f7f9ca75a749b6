"""Arguments are bound, and impossible accesses are reported."""

from __future__ import annotations

import numpy as np
import pytest

from tilewright.dtypes import f16, f32
from tilewright.errors import LaunchError
from tilewright.ir import ops
from tilewright.ir.builder import Builder
from tilewright.ir.kernel import Argument, Derived, Extent, Kernel, SizeParam, Stride, TensorParam
from tilewright.ir.types import Memory, TensorType, Value
from tilewright.symbolic.expr import less
from tilewright.symbolic.nodes import Sym
from tilewright.symbolic.rebuilding import Guard
from tilewright.targets.reference import Kind, bind_sizes, run
from tilewright.threads.distribution import Distribution, Mode
from tilewright.views.transforms import Slice, Tile
from tilewright.views.view import View

N, PITCH, COUNT = Sym("N", 0, 1000), Sym("PITCH", 0), Sym("COUNT", 0, 100)
ROW = Distribution((8,), (Mode(8, 0, 1),), ())
PAIRS = Distribution((8,), (Mode(4, 0, 2),), (Mode(2, 0, 1),))


def doubling(spread=ROW, view=None, element=f32, vector=None, source=None):
    """``Y = X`` for the first eight elements; each tensor has one dimension, with stride ``PITCH``."""
    view = view or View.strided((N,), (PITCH,))
    x, y = (Value(name, TensorType(Memory.GLOBAL, element, view)) for name in "XY")
    builder = Builder()
    tiles = [
        builder.define(ops.Reshape, name, source=value, transform=part or Tile((8,), (0,)))
        for name, value, part in (("x", x, source), ("y", y, None))
    ]
    builder.append(ops.Copy(*tiles, spread, vector))
    sizes = (
        SizeParam(N, Extent("X", 0)),
        SizeParam(PITCH, Stride("X", 0)),
        SizeParam(COUNT, Argument("COUNT")),
        SizeParam(Sym("TWICE", 0, 200), Derived(COUNT * 2)),
    )
    guards = (Guard(less(COUNT, 50), "COUNT must be under 50"),)
    return Kernel("copy8", (TensorParam(x), TensorParam(y), *sizes), (), 8, builder.close(), guards=guards)


def vectors(n=8, element=np.float32):
    return {"X": np.arange(n, dtype=element), "Y": np.zeros(n, element)}


def test_sizes_come_from_arrays_arguments_and_other_sizes() -> None:
    arrays = {"X": np.arange(40, dtype=np.float32)[::4], "Y": np.zeros(40, np.float32)[::4]}
    found = bind_sizes(doubling(), arrays, {"COUNT": 7})
    assert {sym.name: value for sym, value in found.items()} == {"N": 10, "PITCH": 4, "COUNT": 7, "TWICE": 14}
    assert bind_sizes(doubling(), arrays, {"COUNT": 7, "PITCH": 1})[PITCH] == 1


def test_elements_between_strides_are_not_touched() -> None:
    x, whole = np.arange(40, dtype=np.float32)[::4], np.full(40, -1, np.float32)
    run(doubling(), {"X": x, "Y": whole[::4]}, {"COUNT": 1}).raise_if_any()
    assert whole[:32:4].tolist() == x[:8].tolist()
    assert (whole[32::4] == -1).all()
    assert (whole.reshape(10, 4)[:, 1:] == -1).all()


def test_an_element_between_strides_is_out_of_bounds() -> None:
    arrays = {"X": np.arange(40, dtype=np.float32)[::4], "Y": np.zeros(40, np.float32)[::4]}
    report = run(doubling(), arrays, {"COUNT": 1, "PITCH": 2})
    assert [finding.kind for finding in report.findings] == [Kind.OUT_OF_BOUNDS] * 2
    assert report.findings[0].count == 4


def test_a_tile_before_the_first_is_zero() -> None:
    arrays = {"X": np.arange(1, 17, dtype=np.float32), "Y": np.full(16, 7, np.float32)}
    run(doubling(source=Tile((8,), (COUNT - 2,))), arrays, {"COUNT": 1}).raise_if_any()
    assert arrays["Y"].tolist() == [0] * 8 + [7] * 8


BEFORE = Slice(((8 * COUNT - 16, 8 * COUNT - 8),))


def test_a_slice_before_the_first_is_out_of_bounds_and_gives_poison() -> None:
    arrays = vectors(16)
    report = run(doubling(source=BEFORE), arrays, {"COUNT": 1})
    [finding] = report.findings
    assert (finding.kind, finding.tensor, finding.offset, finding.element) == (
        Kind.OUT_OF_BOUNDS,
        "X",
        -8,
        None,
    )
    assert "out-of-bounds access on global X at offset -8, 8 elements in all" in str(finding)
    assert np.isnan(arrays["Y"][:8]).all()


def test_one_element_for_all_indices() -> None:
    one = np.broadcast_to(np.float32(3), (8,))
    arrays = {"X": one, "Y": np.zeros(8, np.float32)}
    kernel = doubling(view=View((N,), Sym("i0", 0, 999, stop=N) * 0, N))
    report = run(kernel, arrays, {"COUNT": 1})
    # All eight threads write Y[0].
    assert {finding.kind for finding in report.findings} == {Kind.WRITE_WRITE}
    run(doubling(), {"X": one, "Y": one.copy()}, {"COUNT": 1, "PITCH": 0})


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"X": np.zeros(8, np.float64)}, "X is an array of float64; the kernel takes f32"),
        ({"X": np.frombuffer(bytes(64), np.float32)[:8], "Y": None}, "no array for Y"),
        ({"Y": np.frombuffer(bytes(32), np.float32)}, "Y is read-only and the kernel writes it"),
        ({"Y": np.zeros(9, np.float32)}, r"Y.shape\[0\] is 9, but N is 8"),
        ({"X": np.zeros((2, 4), np.float32)}, "X has rank 2, the kernel takes 1"),
        ({"X": np.zeros(9, "f4,i2")["f0"], "Y": np.zeros(9, np.float32)}, "multiples of 4"),
    ],
)
def test_arrays_that_do_not_fit_are_refused(changes, message) -> None:
    arrays = {name: array for name, array in {**vectors(), **changes}.items() if array is not None}
    with pytest.raises(LaunchError, match=message):
        run(doubling(), arrays, {"COUNT": 1})


def test_arguments_that_are_missing_or_break_a_guard_are_refused() -> None:
    with pytest.raises(LaunchError, match="kernel copy8 needs the integer COUNT"):
        run(doubling(), vectors())
    with pytest.raises(LaunchError, match="COUNT must be under 50"):
        run(doubling(), vectors(), {"COUNT": 50})


def test_vectors_must_be_aligned_when_they_run() -> None:
    packed = View.strided((N,), (1,))
    wide = doubling(PAIRS, packed, f16, vector=2)
    run(wide, vectors(8, np.float16), {"COUNT": 1}).raise_if_any()
    shifted = {name: np.zeros(9, np.float16)[1:] for name in "XY"}
    found = run(wide, shifted, {"COUNT": 1}).findings
    assert {finding.kind for finding in found} == {Kind.MISALIGNED}
    assert "a vector of 4 bytes starts at an address that 4 does not divide" in str(found[0])


def test_an_edge_must_not_cut_a_vector() -> None:
    packed = View.strided((N,), (1,))
    found = run(doubling(PAIRS, packed, f16, vector=2), vectors(7, np.float16), {"COUNT": 1}).findings
    assert {finding.kind for finding in found} == {Kind.MISALIGNED}
    assert "an edge cuts a vector of 2 elements" in str(found[0])


def test_the_elements_of_a_vector_must_be_neighbours() -> None:
    arrays = {"X": np.arange(16, dtype=np.float16)[::2], "Y": np.zeros(16, np.float16)[::2]}
    found = run(doubling(PAIRS, element=f16, vector=2), arrays, {"COUNT": 1}).findings
    assert "the 2 elements of a vector are not contiguous" in str(found[0])


def test_findings_are_counted_once_each() -> None:
    body = doubling(source=BEFORE)
    thrice = Kernel("thrice", body.params, (), 8, type(body.body)(body.body.ops[:2] + body.body.ops[2:] * 3))
    [finding] = run(thrice, vectors(16), {"COUNT": 1}).findings
    assert finding.count == 24
