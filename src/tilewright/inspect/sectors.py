"""How many sectors of global memory a copy asks for, against those that its bytes need, from the IR alone."""

from __future__ import annotations

from tilewright.errors import LayoutError
from tilewright.ir.kernel import Kernel
from tilewright.ir.legality import widest_vector
from tilewright.ir.ops import Copy
from tilewright.ir.types import Memory, TensorType, Value
from tilewright.symbolic.nodes import Sym
from tilewright.symbolic.rebuilding import symbols
from tilewright.threads.banks import coalescing

LARGE = 8193
"""What stands for a size that is not known, times what divides it: no edge cuts a tile."""


def sector_factor(kernel: Kernel, op: Copy) -> float | None:
    """Sectors that a copy asks for, for each that its bytes need; of two sides in global memory the worse.

    Args:
        kernel: the traced kernel.
        op: a copy of it.

    Returns:
        1.0 for a coalesced copy; None if neither side lies in global memory, or nothing can be said.
    """
    found = [_factor(kernel, op, value) for value in (op.source, op.target)]
    return max((factor for factor in found if factor is not None), default=None)


def _factor(kernel: Kernel, op: Copy, value: Value) -> float | None:
    if not isinstance(value.type, TensorType) or value.type.memory is not Memory.GLOBAL:
        return None
    if value.type.indices:
        return None  # only the rows that a launch chooses tell
    view = value.type.view
    sizes = {param.sym for param in kernel.sizes}
    free = (symbols(view.offset) | symbols(view.valid)) - set(view.coords)
    at = {sym: _typical(sym, sym in sizes) for sym in free}
    vector = widest_vector(op) if op.vector is None else op.vector
    try:
        traffic = coalescing(view, op.spread, vector, value.dtype.bytes, kernel.lanes, at)
    except (LayoutError, ZeroDivisionError):
        return None
    return traffic.sectors / traffic.minimum if traffic.minimum else None


def _typical(sym: Sym, is_size: bool) -> int:
    # Of an integer that may be negative nothing is typical but that it is not.
    return sym.divisor * LARGE if is_size else max(sym.low, 0)
