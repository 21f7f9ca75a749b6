"""Launch dataflow kernels on padded arrays, and compare every element of their results."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from tilewright.checking.compare import Accumulation
from tilewright.checking.flows import compare_flow
from tilewright.runtime.cuda import CUDA_DRIVER
from tilewright.runtime.gpu_memory import DeviceArray
from tilewright.runtime.kernel import Bound, Kernel


def padded(
    kernel: Kernel, extents: Mapping[str, int], dtype: Any, seed: int = 0, result: str = "C"
) -> dict[str, Any]:
    """Return random operands with odd strides of rows in units of 16 bytes, and a result of NaN."""
    rng = np.random.default_rng(seed)
    made = {}
    for parameter in kernel.program.parameters:
        if not parameter.dims:
            continue
        *rows, columns = [extents[dim] for dim in parameter.dims]
        whole = np.full((*rows, -(-columns // 8) * 8 + 8), np.nan, dtype)
        made[parameter.name] = part = whole[..., :columns]
        if parameter.name != result:
            part[...] = rng.standard_normal(part.shape)
    return made


def compared(
    bound: Bound, made: Mapping[str, Any], results: Sequence[str], target: str, **numbers: float
) -> tuple[Any, dict[str, Any], dict[str, Any], Accumulation]:
    """Launch a kernel; return its executable, results and operands, and how it adds up.

    On the reference it raises what the checker finds.
    """
    there = [DeviceArray.of(array) for array in made.values()] if target == "cuda" else made.values()
    ran = bound(*there, **numbers, target=target)
    assert ran.target == target
    if target == "cuda":
        CUDA_DRIVER.synchronize()
        made = {one: array.host() for one, array in zip(made, there, strict=True)}
    stored = {one: made[one] for one in results}
    given = {one: array for one, array in made.items() if one not in stored}
    how = Accumulation.of(ran.schedule.atom, ran.schedule.promote * ran.schedule.block_k or None)
    compare_flow(ran.flow, stored, given, numbers, how).raise_if_wrong()
    return ran, stored, given, how
