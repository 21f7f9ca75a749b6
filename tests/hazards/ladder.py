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
    """The names that an example defines."""
    return runpy.run_path(str(EXAMPLES / file))


LADDER = {
    "optimized_gemm": example("04_optimized_gemm.py")["optimized_gemm"].program,
    "im2col": example("05_im2col.py")["im2col"].program,
}


def traced(name: str, arrays: dict[str, np.ndarray], **constants: Any) -> Kernel:
    """A kernel of the ladder or of `kernels.py`, for these arrays."""
    program = {**PROGRAMS, **LADDER}[name]
    return program.trace({key: spec(array) for key, array in arrays.items()}, constants)
