"""Trace a test's function for some arrays, and run it on the reference."""

from __future__ import annotations

import numpy as np

from tilewright.dtypes import dtype
from tilewright.lang.program import Program
from tilewright.lang.specs import TensorSpec
from tilewright.targets.reference import run


def spec(array):
    strides = [stride // array.itemsize for stride in array.strides]
    unit = next((dim for dim in reversed(range(array.ndim)) if strides[dim] == 1), None)
    ones = (1,) * array.ndim
    return TensorSpec(dtype(array.dtype), array.ndim, unit, ones, ones, 16, False)


def launch(function, declared, arrays, sizes=None, scalars=None, **constants):
    specs = {name: spec(array) for name, array in arrays.items()}
    report = run(Program(function, declared).trace(specs, constants), arrays, sizes, scalars)
    report.raise_if_any()
    return report


def square(rows=16, columns=16, element=np.float32):
    rng = np.random.default_rng(rows * columns)
    return (rng.standard_normal((rows, columns)) * 8).astype(element)


MOVE = {"X": "M N", "Y": "P Q"}
