"""Small problems of whole numbers, on which an exported kernel is checked before its first use."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from tilewright.checking.flows import compare_flow
from tilewright.dataflow.evaluate import evaluate
from tilewright.dataflow.nodes import ArrayPart, Flow
from tilewright.dataflow.parser import parse_flow
from tilewright.dtypes import DType, dtype
from tilewright.errors import LaunchError, TilewrightError
from tilewright.runtime.binding import bind
from tilewright.runtime.kernel import Bound
from tilewright.runtime.specimens import Specimen
from tilewright.schedule.folds.form import is_folded
from tilewright.shipping.launch_text import Exported, infos_of
from tilewright.symbolic.nodes import Sym
from tilewright.targets.target import REFERENCE

SEED = 7
"""Seed of the whole numbers of a small problem."""

EXTENTS = (37, 53, 71, 29, 3, 5)
"""Least extents of the dimensions of a small problem. A dimension takes the next multiple of its divisor."""

QUARTERS = (4, 2, 1, 8, 16, 32, 64, 128)
"""Factors of `EXTENTS`, in quarters. They are tried in turn until the kernel's conditions hold."""


def small_problem(exported: Exported) -> dict[str, Any] | None:
    """Return the arrays and integers of a small problem of a kernel's class; None if none was found.

    Returns:
        Shape and strides of each array, and the value of each integer and number.
    """
    kernel = exported.kernel
    for quarters in QUARTERS:
        extents: dict[Sym, int] = {}
        divisors: dict[Sym, int] = {}
        for tensor in kernel.tensors:
            for dim, extent in enumerate(tensor.tensor.shape):
                if isinstance(extent, Sym):
                    divisor = exported.specs[tensor.name].extent_divisors[dim]
                    divisors[extent] = math.lcm(divisors.get(extent, 1), divisor)
        for at, (sym, divisor) in enumerate(divisors.items()):
            least = max(EXTENTS[at % len(EXTENTS)] * quarters // 4, 1)
            extents[sym] = -(-least // divisor) * divisor
        shapes = {}
        for tensor in kernel.tensors:
            found = [extents.get(one) if isinstance(one, Sym) else one for one in tensor.tensor.shape]
            if not all(isinstance(one, int) for one in found):
                return None
            shapes[tensor.name] = tuple(int(one) for one in found if isinstance(one, int))
        infos = infos_of(exported.specs, shapes)
        try:
            bind(kernel, infos, exported.integers)
        except LaunchError:
            continue
        numbers = {one.name: 2 for one in exported.parameters if one.kind == "scalar"}
        arrays = {
            name: {"shape": list(info.shape), "strides": list(info.strides)} for name, info in infos.items()
        }
        indices = sorted(index_arrays(exported.executable.flow))
        return {"arrays": arrays, "integers": exported.integers, "numbers": numbers, "indices": indices}
    return None


def index_arrays(flow: Flow | None) -> set[str]:
    """Return the arrays whose integers choose rows or groups; on small problems they are zeros."""
    if flow is None:
        return set()
    operands = [store.operand for store in flow.stores]
    operands += [node.operand for node in flow.walk() if isinstance(node, ArrayPart)]
    found = {index.name for operand in operands for index in operand.indices}
    if flow.grouped is not None and flow.grouped.groups is not None:
        found.add(flow.grouped.groups.index.name)
    return found


def reference_arrays(bound: Bound, exported: Exported, problem: Mapping[str, Any]) -> dict[str, Any] | None:
    """Run an explicit kernel on the reference; None if it breaks a rule there.

    Args:
        bound: the kernel.
        exported: the kernel for one class.
        problem: the small problem of the class.

    Returns:
        ``given_X`` for each array before, ``expected_X`` for each written array after the launch, as bytes.
    """
    arrays = filled(problem, {name: spec.dtype for name, spec in exported.specs.items()})
    before = {f"given_{name}": _bits(array) for name, array in arrays.items()}
    given = {**problem["integers"], **problem["numbers"], **arrays}
    try:
        bound(*(given[one.name] for one in exported.parameters), target=REFERENCE.name)
    except TilewrightError:
        return None
    written = exported.kernel.written_params
    return before | {f"expected_{name}": _bits(arrays[name]) for name in sorted(written)}


def _bits(array: Any) -> Any:
    """Return the elements as unsigned integers, which every version of NumPy reads."""
    dense = np.ascontiguousarray(array)
    return dense.view(f"u{dense.dtype.itemsize}")


# ---------------------------------------------------------------- the check of a loaded kernel

SLACK = 4
"""Roundings of the result by which an explicit kernel may differ from the reference.

Sums of whole numbers are exact; functions such as `exp` are not.
"""

LOOP_SLACK = 64
"""Roundings of the narrowest dtype by which loops that carry a state may differ from their flow.

No bound is derived for such loops. Softmax of small problems differs by a few roundings.
"""


def filled(
    problem: Mapping[str, Any], dtypes: Mapping[str, DType], known: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """Return the arrays of a small problem in host memory.

    Args:
        problem: from `small_problem`.
        dtypes: the dtype of each array.
        known: what `reference_arrays` returned at the export; None for a dataflow kernel.
    """
    rng, arrays = np.random.default_rng(SEED), dict[str, Any]()
    for name, one in problem["arrays"].items():
        made = Specimen(dtypes[name], tuple(one["shape"]), tuple(one["strides"]), 16).filled(rng)
        assert isinstance(made, np.ndarray), "exported arrays are not packed"
        if name in problem["indices"]:
            made[...] = 0
        if known is not None:
            made[...] = known[f"given_{name}"].view(made.dtype)
        arrays[name] = made
    return arrays


def fault(
    computes: str,
    stored: Mapping[str, Any],
    given: Mapping[str, Any],
    numbers: Mapping[str, Any],
    known: Mapping[str, Any] | None,
) -> str:
    """Return what is wrong with the arrays that a kernel stored; empty if they are right.

    Args:
        computes: the text of the flow of a dataflow kernel.
        stored: the arrays after the launch.
        given: all arrays before the launch.
        numbers: the numbers and integers of the launch.
        known: what `reference_arrays` returned at the export; None for a dataflow kernel.
    """
    if known is None:
        flow = parse_flow(computes)
        if not is_folded(flow):
            found = compare_flow(flow, stored, given, numbers)
            return "" if found.ok else str(found)
        wanted: Mapping[str, Any] = evaluate(flow, {**stored, **given}, numbers)
        # A value that the loop rounds to a narrow dtype may be rounded the other way.
        unit, slack = max(node.dtype.unit_roundoff for node in flow.walk()), LOOP_SLACK
    else:
        wanted = {name: known[f"expected_{name}"].view(array.dtype) for name, array in stored.items()}
        unit, slack = 0.0, SLACK
    for name, array in stored.items():
        wide, expected = array.astype(np.float64), wanted[name].astype(np.float64)
        kind = dtype(array.dtype)
        near = slack * max(unit, kind.unit_roundoff) * np.maximum(np.abs(expected), 1) if kind.is_float else 0
        with np.errstate(invalid="ignore"):
            right = (
                (np.abs(wide - expected) <= near) | (wide == expected) | (np.isnan(wide) & np.isnan(expected))
            )
        if wrong := int((~right).sum()):
            return f"{wrong} of {expected.size} elements of {name}"
    return ""
