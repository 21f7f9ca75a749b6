"""The parameters that a launch passes to the kernel: all except those that tensor maps already hold."""

from __future__ import annotations

from dataclasses import replace

from tilewright.ir.copies import is_bulk
from tilewright.ir.kernel import Kernel, Param, SizeParam, TensorParam
from tilewright.ir.types import Value
from tilewright.ir.verify import used_symbols


def passed_params(kernel: Kernel) -> tuple[Param, ...]:
    """Return the parameters in launch order, without arrays used only by TMA and sizes used only by these."""
    if not kernel.tensor_maps:
        return kernel.params
    mapped = {tensor_map.tensor for tensor_map in kernel.tensor_maps}
    others = _accessed_otherwise(kernel)
    kept = tuple(
        param
        for param in kernel.params
        if not isinstance(param, TensorParam) or param.value.name not in mapped or param.value in others
    )
    used = used_symbols(replace(kernel, params=kept))
    return tuple(param for param in kept if not isinstance(param, SizeParam) or param.sym in used)


def _accessed_otherwise(kernel: Kernel) -> set[Value]:
    """Return the buffers that an operation other than TMA names."""
    found: set[Value] = set()
    for op in kernel.walk():
        if not is_bulk(op):
            found.update(value.buffer for value in (*op.read, *op.written))
        elif (held := op.ends[0].tensor.map) is not None:
            found.add(held.table.buffer)
    return found
