"""The generated text, run on the host thread by thread, computes the same as the reference."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tilewright.dtypes import DType
from tilewright.ir.kernel import Kernel, ScalarParam, SizeParam, TensorParam, Workspace
from tilewright.ir.types import Value
from tilewright.runtime.native import find_toolchains
from tilewright.symbolic.rebuilding import evaluate
from tilewright.targets import cuda, reference

SIZES = {"M": 96, "N": 80, "K": 112, "B": 5, "L": 9, "P": 1003, "T": 704}
"""Extents where a case asks for a divisor of 16 at most; rounded up for others."""

INEXACT = ("arithmetic_f64", "arithmetic_f32", "arithmetic_f16", "arithmetic_bf16", "arithmetic_f8e4m3")
"""Cases with transcendental functions, whose last bit is the library's."""


@pytest.fixture(scope="session")
def emulator(
    emulated: dict[str, Callable[[], Kernel]],
    emulation: dict[str, Any],
    tmp_path_factory: pytest.TempPathFactory,
) -> Any:
    listings = {name: cuda.emit(trace(), "sm_90a") for name, trace in emulated.items()}
    return emulation["Emulator"](listings, find_toolchains()[0], tmp_path_factory.mktemp("emulator"))


def extents(kernel: Kernel, value: Value) -> tuple[int, ...]:
    """Return an extent for each dimension: ragged if the kernel knows no divisor."""
    found = []
    for extent in value.tensor.shape:
        wanted = SIZES[extent.name] - (3 if extent.divisor == 1 else 0)
        found.append(-(-wanted // extent.divisor) * extent.divisor)
    return tuple(found)


def filled(kernel: Kernel, value: Value, rng: np.random.Generator, bits: bool) -> np.ndarray[Any, Any]:
    """Return an array with strides of the kernel's class, filled with small integers or with any bits."""
    shape, dtype = extents(kernel, value), value.dtype
    view = value.tensor.view
    unit = next((d for d in range(len(shape)) if _unit(view, d)), len(shape) - 1)
    order = [unit, *(d for d in reversed(range(len(shape))) if d != unit)]
    span = 1
    stride = [0] * len(shape)
    for at, dim in enumerate(order):
        stride[dim] = span
        span = span * shape[dim] if at else -(-(shape[dim] + 5) // 16) * 16
    numbers = any_bits(span, dtype, rng) if bits else small_integers(span, dtype, rng)
    items = [s * dtype.bytes for s in stride]
    return np.ndarray(shape, dtype.numpy, numbers, strides=items)


def small_integers(count: int, dtype: DType, rng: np.random.Generator) -> np.ndarray[Any, Any]:
    """Numbers whose sums of products are exact."""
    if dtype.components > 1:
        return rng.integers(-4, 5, (count, 2)).astype(np.float32).view(np.complex64).ravel()
    low = 0 if dtype.kind in ("uint", "bool") else -4
    return rng.integers(low, 5, count).astype(dtype.numpy)


def any_bits(count: int, dtype: DType, rng: np.random.Generator) -> np.ndarray[Any, Any]:
    """Return every number, and for f64 many numbers at or near midpoints of two narrower floats."""
    if dtype.kind == "bool":
        return rng.integers(0, 2, count).astype(bool)
    if dtype.name != "f64":
        numbers = np.frombuffer(rng.bytes(count * dtype.bytes), dtype.numpy).copy()
        if dtype.is_float:
            numbers[np.isnan(numbers)] = np.nan
        return numbers
    exponents = rng.integers(-30, 30, count)
    middles = rng.integers(-(2**12), 2**12, count) * 2.0**exponents
    return middles * (1 + rng.integers(-1, 2, count) * 2.0**-45)


def _unit(view: Any, dim: int) -> bool:
    zero = [0] * view.rank
    one = [int(d == dim) for d in range(view.rank)]
    return view.at(one) == 1 and view.at(zero) == 0


def arguments(kernel: Kernel, arrays: dict[str, Any], env: dict[Any, int]) -> tuple[list[Any], list[Any]]:
    """Return the kernel's arguments as C values, and the objects that must stay alive."""
    packed, kept = [], []
    for param in kernel.params:
        if isinstance(param, TensorParam):
            packed.append(ctypes.c_void_p(arrays[param.value.name].address))
        elif isinstance(param, Workspace):
            kept.append(np.zeros(int(evaluate(param.elems, env)), param.value.dtype.numpy))
            packed.append(ctypes.c_void_p(kept[-1].ctypes.data))
        elif isinstance(param, ScalarParam):
            packed.append(ctypes.c_float(0.75))
        elif isinstance(param, SizeParam):
            kind = ctypes.c_longlong if param.bits == 64 else ctypes.c_int
            packed.append(kind(env[param.sym]))
    return packed, kept


@pytest.mark.in_turns(4)
@np.errstate(all="ignore")
def test_text_computes_what_the_reference_says(
    case: str, kernel: Kernel, emulator: Any, emulation: dict[str, Any]
) -> None:
    rng = np.random.default_rng(len(case))
    given = {value.name: filled(kernel, value, rng, case.startswith("convert")) for value in kernel.tensors}
    guarded = {name: emulation["Guarded"](array) for name, array in given.items()}
    sizes, scalars = {"count": 3}, {"alpha": 0.75}
    lowered = cuda.lower(kernel, cuda.architecture("sm_90a"))[0]
    env = reference.bind_sizes(lowered, given, sizes)
    packed, kept = arguments(lowered, guarded, env)
    grid = [int(evaluate(axis.extent, env)) for axis in lowered.grid]
    cluster = [1] * len(grid)
    for member in lowered.cluster:
        cluster[member.axis] = member.extent
    emulator.run(case, grid, lowered.threads, packed, cluster)
    del kept
    reference.run(kernel, given, sizes, scalars, check=False)
    for name, array in given.items():
        assert guarded[name].untouched, f"{name} is written outside its elements"
        compare(guarded[name].array, array, exact=case not in INEXACT)


def compare(found: Any, expected: Any, *, exact: bool) -> None:
    wide = np.complex128 if np.iscomplexobj(expected) else np.float64
    found, expected = found.astype(wide), expected.astype(wide)
    if exact:
        np.testing.assert_array_equal(found, expected)
    else:
        np.testing.assert_allclose(found, expected, rtol=2**-3, atol=2**-6)
