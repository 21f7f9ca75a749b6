"""Classes of arrays of any extents, and recording, for the tests of dataflow."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import tilewright as tw
from tilewright.dataflow.nodes import Flow
from tilewright.lang.program import Program
from tilewright.lang.specs import TensorSpec


def spec(dtype: tw.DType = tw.f16, rank: int = 2) -> TensorSpec:
    """Row-major arrays of any extents."""
    return TensorSpec(dtype, rank, rank - 1, (1,) * rank, (1,) * rank, dtype.bytes, False)


def recorded(function: Callable[..., Any], declared: Mapping[str, Any], **given: Any) -> Flow:
    """Record a kernel's flow; tensors are f16 with their declared dimensions, unless a spec is given."""
    program = Program(function, declared)
    specs = {
        p.name: given.pop(p.name, spec(rank=len(p.dims))) for p in program.parameters if p.kind == "tensor"
    }
    made = program.run(specs, given)
    assert isinstance(made, Flow)
    return made
