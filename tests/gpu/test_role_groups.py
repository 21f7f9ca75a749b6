"""Groups of warps of one role, on a GPU: each has its own rows, threads and barrier."""

from __future__ import annotations

import numpy as np
import pytest
from tests.targets.test_role_groups import mirrored

from tilewright.runtime.gpu_memory import DeviceArray

pytestmark = pytest.mark.gpu


def test_each_group_turns_its_own_row_around() -> None:
    x = np.random.default_rng(1).standard_normal((3, 64)).astype(np.float32)
    source, result = (DeviceArray.of(array) for array in (x, np.full_like(x, np.nan)))
    assert mirrored.bind(number="own")(source, result, target="cuda").target == "cuda"
    np.testing.assert_array_equal(result.host(), np.concatenate([x[:, 32:], x[:, :32]], 1))
