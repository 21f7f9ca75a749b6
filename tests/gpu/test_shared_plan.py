"""Tensors that share memory by the plan, on a GPU, keep their contents as long as needed."""

from __future__ import annotations

import numpy as np
import pytest
from tests.passes.test_shared_plan import BYTES, COLUMNS, ROWS, SHARING

from tilewright.runtime.gpu_memory import DeviceArray

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("case", SHARING)
def test_what_shares_memory_is_right(case: str) -> None:
    rng = np.random.default_rng(len(case))
    rows = ROWS * 64
    x = rng.standard_normal((rows, COLUMNS)).astype(np.float32)
    arrays = [DeviceArray.of(array) for array in (x, np.full_like(x, np.nan), np.full_like(x, np.nan))]
    executable = SHARING[case](*arrays, target="cuda")
    assert executable.target == "cuda"
    assert executable.listing is not None
    assert executable.listing.shared_bytes in (BYTES, BYTES + 8)
    first = slice(None) if case == "loop" else slice(0, ROWS)
    for result in arrays[1:]:
        np.testing.assert_array_equal(result.host()[first], x[first])
