"""What counts as an array of numbers, for functions that look at their arguments."""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np

from tilewright.dtypes import dtype
from tilewright.errors import DTypeError
from tilewright.kinds import legal

Array: TypeAlias = np.ndarray[Any, np.dtype[Any]]
"""A NumPy array of a dtype that kernels know."""


def _is_array(value: object) -> bool:
    if not isinstance(value, np.ndarray):
        return False
    try:
        dtype(value.dtype)
    except DTypeError:
        return False
    return True


legal("Array", "a NumPy array of a dtype that kernels know", "NumPy arrays of such dtypes", _is_array)
