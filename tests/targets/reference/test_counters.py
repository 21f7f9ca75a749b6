"""Bank conflicts and coalescing, counted from lane addresses."""

from __future__ import annotations

import numpy as np
import pytest

from tilewright.dtypes import f16, f32, f64, i8
from tilewright.ir import ops
from tilewright.ir.builder import Builder
from tilewright.ir.kernel import Kernel, TensorParam
from tilewright.ir.types import Memory, TensorType, Value
from tilewright.targets.reference import run
from tilewright.threads.distribution import Distribution, Mode
from tilewright.views.transforms import Swizzle
from tilewright.views.view import View


def through_shared(view, element, spread, vector=None):
    """Copy a packed global tile into shared memory with a layout; return the counters of both sides."""
    builder = Builder()
    strides = np.cumprod([1, *view.shape[:0:-1]])[::-1]
    kind = TensorType(Memory.GLOBAL, element, View.strided(view.shape, [int(s) for s in strides]))
    source = Value("G", kind)
    builder.names.unique("G")
    target = builder.define(ops.Shared, "S", dtype=element, view=view, elems=int(view.elems))
    builder.append(ops.Copy(source, target, spread, vector))
    kernel = Kernel("k", (TensorParam(source),), (), spread.size_threads, builder.close())
    report = run(kernel, {"G": np.zeros(view.shape, element.numpy)})
    report.raise_if_any()
    return report.counters


def lanes(shape, *threads, values=()):
    return Distribution(shape, tuple(Mode(*t) for t in threads), tuple(Mode(*v) for v in values))


ROW = lanes((1, 32), (32, 1, 1))


@pytest.mark.parametrize(
    ("stride", "degree"), [(1, 1), (2, 2), (3, 1), (4, 4), (8, 8), (16, 16), (32, 32), (33, 1)]
)
def test_strides_conflict_by_their_common_divisor_with_the_banks(stride, degree) -> None:
    [count] = through_shared(View.strided((1, 32), (0, stride)), f32, ROW).banks
    assert (count.requests, count.wavefronts, count.worst) == (1, degree, degree)
    assert count.average == degree


@pytest.mark.parametrize(("element", "wavefronts"), [(i8, 1), (f16, 1), (f32, 1)])
def test_neighbours_of_any_width_share_words(element, wavefronts) -> None:
    [count] = through_shared(View.strided((1, 32), (32, 1)), element, ROW).banks
    assert count.wavefronts == wavefronts


def test_eight_bytes_per_lane_take_two_requests() -> None:
    [count] = through_shared(View.strided((1, 32), (32, 1)), f64, ROW).banks
    assert (count.requests, count.worst) == (2, 1)


def test_sixteen_bytes_per_lane_take_four_requests() -> None:
    spread = lanes((8, 32), (4, 1, 8), (8, 0, 1), values=[(8, 1, 1)])
    [packed] = through_shared(View.strided((8, 32), (32, 1)), f16, spread, 8).banks
    assert (packed.requests, packed.wavefronts) == (4, 4)
    [apart] = through_shared(View.strided((8, 32), (64, 1)), f16, spread, 8).banks
    assert (apart.requests, apart.worst) == (4, 2)


def test_a_swizzle_resolves_conflicts() -> None:
    column = lanes((32, 64), (32, 0, 1), values=[(8, 1, 1), (8, 1, 8)])
    rows = View.strided((32, 64), (64, 1))
    [plain] = through_shared(rows, f16, column, 8).banks
    [swizzled] = through_shared(Swizzle(3, 3, 3).apply(rows), f16, column, 8).banks
    assert (plain.worst, swizzled.worst) == (8, 1)


def test_sectors_of_rows_and_columns() -> None:
    rows = lanes((32, 32), (32, 1, 1), values=[(32, 0, 1)])
    columns = lanes((32, 32), (32, 0, 1), values=[(32, 1, 1)])
    view = View.strided((32, 32), (32, 1))
    [coalesced] = through_shared(view, f32, rows).sectors
    [scattered] = through_shared(view, f32, columns, 1).sectors
    assert (coalesced.touched, coalesced.fewest, coalesced.excess) == (128, 128, 1.0)
    assert (scattered.touched, scattered.fewest, scattered.excess) == (1024, 128, 8.0)


def test_counters_print_their_places() -> None:
    counters = through_shared(View.strided((1, 32), (0, 2)), f32, ROW)
    assert str(counters).splitlines() == [
        "writes of shared S in copy(G, S): 2.00 wavefronts per request, worst 2",
        "reads of global G in copy(G, S): 4 sectors for 4",
        "0 barriers",
    ]
