"""Copies that reduce into global memory, on a GPU: every kind and element type, by many blocks at once."""

from __future__ import annotations

import numpy as np
import pytest
from tests.targets.reductions import COMBINED, EVERY, expected, into_one_row, over_rows, values

from tilewright.runtime.gpu_memory import DeviceArray

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize(("columns", "vector"), [(61, None), (64, None), (64, 1), (64, 2)])
@pytest.mark.parametrize(("kind", "name"), EVERY)
def test_blocks_reduce_into_one_tile(kind, name, columns, vector) -> None:
    rows = 160 if name in ("f16", "bf16") else 4000  # sums of narrow floats stay exact
    x, start = values(name, (rows, columns), 1), values(name, (16, columns), 2)
    if name == "bf16":
        x, start = np.sign(x.astype(np.float32)).astype(x.dtype), np.zeros_like(start)
    y = DeviceArray.of(start)
    vector = vector if columns == 64 else 1
    assert over_rows.bind(kind=kind, vector=vector)(DeviceArray.of(x), y).target == "cuda"
    np.testing.assert_array_equal(y.host(), expected(kind, x, start))


@pytest.mark.parametrize("through", [False, True])
def test_the_source_may_lie_in_memory_and_have_another_dtype(through) -> None:
    x, start = values("f16", (400, 64), 3), values("f32", (16, 64), 4)
    y = DeviceArray.of(start)
    assert over_rows.bind(kind="add", through=through)(DeviceArray.of(x), y).target == "cuda"
    np.testing.assert_array_equal(y.host(), expected("add", x, start))


@pytest.mark.parametrize("kind", ["add", "max"])
def test_threads_of_a_block_reduce_into_one_element(kind) -> None:
    x, start = values("i32", (4000, 64), 5), values("i32", (64,), 6)
    y = DeviceArray.of(start)
    assert into_one_row.bind(kind=kind)(DeviceArray.of(x), y).target == "cuda"
    np.testing.assert_array_equal(y.host(), COMBINED[kind].reduce(np.concatenate([start[None], x]), axis=0))


@pytest.mark.parametrize("name", ["f32", "f64"])
@pytest.mark.parametrize("kind", ["min", "max"])
def test_extremes_of_floats_keep_signs_nan_and_infinities(kind, name) -> None:
    kinds = {"f32": np.float32, "f64": np.float64}[name]
    special = np.array([np.nan, np.inf, -np.inf, -1e-30, 1e-30, -3.0, 3.0, 0.0], kinds)
    x = np.zeros((16, 64), kinds)
    x[:, :] = np.resize(special, 64)[None]
    start = np.repeat(np.resize(special, 16)[:, None], 64, axis=1).astype(kinds)
    y = DeviceArray.of(start)
    over_rows.bind(kind=kind)(DeviceArray.of(x), y)
    np.testing.assert_array_equal(y.host(), COMBINED[kind](x, start))
