"""The ladder's programs, as the examples define them."""

from __future__ import annotations

import runpy
from pathlib import Path
from typing import Any

import numpy as np

from tilewright.ir.kernel import Kernel

from .kernels import PROGRAMS, spec

EXAMPLES = Path(__file__).parents[2] / "examples"


def example(file: str) -> dict[str, Any]:
    """Return the names that an example defines."""
    return runpy.run_path(str(EXAMPLES / file))


PLACES = {
    "optimized_gemm": "04_optimized_gemm.py",
    "im2col": "05_im2col.py",
    "warp_tiles_gemm": "06_warp_tiles_gemm.py",
    "serial": "07_three_levels_gemm.py",
    "buffered": "07_three_levels_gemm.py",
    "prefetched": "07_three_levels_gemm.py",
}
LADDER = {name: example(file)[name].program for name, file in PLACES.items()}


def traced(name: str, arrays: dict[str, np.ndarray], **constants: Any) -> Kernel:
    """Trace a kernel of the ladder or of `kernels.py` for these arrays."""
    program = {**PROGRAMS, **LADDER}[name]
    return program.trace({key: spec(array) for key, array in arrays.items()}, constants)
