"""The error for a matrix whose transpose would fit says so."""

from __future__ import annotations

import numpy as np
import pytest

import tilewright as tw


@tw.kernel(A="M K", B="N K")
def taken(A, B):
    tw.copy(A.tile((8, 8), (0, 0)), B.tile((8, 8), (0, 0)), threads=(4, 8))


@pytest.mark.parametrize(("shape", "said"), [((9, 5), "B is (N, K); nearest: B.T"), ((6, 5), "")])
def test_a_matrix_given_transposed(shape: tuple[int, int], said: str) -> None:
    a, b = np.zeros((8, 9), np.float32), np.zeros(shape, np.float32)
    with pytest.raises(tw.LaunchError) as caught:
        taken(a, b, target="reference")
    assert str(caught.value).endswith(f"in B.shape[1]{'; ' * bool(said)}{said}")
