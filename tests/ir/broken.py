"""Kernels that break rules, traced to collect the violations."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tilewright as tw
from tilewright.errors import Violation
from tilewright.ir.verify import violations
from tilewright.lang.program import Program
from tilewright.lang.specs import TensorSpec


def spec(
    dtype: tw.DType = tw.f16, extents: int = 8, stride: int = 8, align: int = 16, unit: int = 1
) -> TensorSpec:
    strides = (1, stride) if unit == 0 else (stride, 1)
    return TensorSpec(dtype, 2, unit, (extents, extents), strides, align, False)


def found(
    author: Callable[..., Any], declared: dict[str, Any] | None = None, **specs: TensorSpec
) -> list[Violation]:
    program = Program(
        author, {"n": int, **(declared or {})} if "n" in author.__code__.co_varnames else declared
    )
    given = {p.name: specs.get(p.name, spec()) for p in program.parameters if p.kind == "tensor"}
    return violations(program.trace(given))


def said(author: Callable[..., Any], **given: Any) -> list[tuple[str, str, str]]:
    return [(v.rule, v.message, v.nearest) for v in found(author, **given)]
