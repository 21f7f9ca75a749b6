"""The Hopper GEMM of the examples, traced for small arrays.  Golden files name its lines."""

from __future__ import annotations

import runpy
from pathlib import Path
from typing import Any

import numpy as np

import tilewright as tw
from tilewright.dtypes import dtype
from tilewright.ir.kernel import Kernel

from .kernels import spec

PATH = Path(__file__).parents[2] / "examples" / "03_hopper_gemm.py"
EXAMPLE = runpy.run_path(str(PATH))


def trace(arrays: dict[str, np.ndarray], example: dict[str, Any] = EXAMPLE, **constants) -> Kernel:
    """Trace the example's kernel, or a changed example's, for these arrays."""
    bound = example["hopper_gemm"].bind(**constants)
    return bound.trace(*(spec(array) for array in arrays.values()))


def padded(values: np.ndarray, unit: int = 8) -> np.ndarray:
    """Return the values with rows of a multiple of ``unit`` elements, as TMA needs them."""
    rows, columns = values.shape
    whole = np.zeros((rows, max(-(-columns // unit), 1) * unit), values.dtype)
    view = whole[:, :columns]
    view[...] = values
    return view


def operands(m: int, n: int, k: int, element="bf16", seed: int = 0) -> dict[str, np.ndarray]:
    """Return random A and B and a poisoned C, with rows that TMA can address."""
    rng = np.random.default_rng(seed)
    kind = dtype(element).numpy
    a, b = (padded(rng.standard_normal((rows, k)).astype(kind)) for rows in (m, n))
    return {"A": a, "B": b, "C": padded(np.full((m, n), np.nan, kind))}


def constants(columns=64, stages=3, buffers=1, blocks=2, group=2, element="bf16") -> dict[str, Any]:
    """The constants of the Hopper GEMM."""
    mma = tw.TiledMma(tw.atoms.wgmma(dtype(element), columns))
    return {"mma": mma, "stages": stages, "buffers": buffers, "blocks": blocks, "group": group}
