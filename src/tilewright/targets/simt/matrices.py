"""Which copies use ``ldmatrix`` and ``stmatrix``.  `tilewright.passes.memory_instructions` tests the maps."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from tilewright.ir.copies import Copy
from tilewright.ir.kernel import Kernel
from tilewright.ir.ops import Op
from tilewright.passes.memory_instructions import matrices_of
from tilewright.passes.rewrite import Rewriter, rewrite_kernel


def choose_engines(kernel: Kernel, *, stores: bool) -> Kernel:
    """Every copy whose engine nobody has said goes by matrices where they fit, else directly.

    Args:
        kernel: the kernel; its layouts, widths and operands in registers are chosen.
        stores: whether the architecture stores by matrices too.
    """

    def change(op: Op, rewriter: Rewriter) -> Iterable[Op] | None:
        if not isinstance(op, Copy) or op.engine not in (None, "matrix"):
            return None
        how = op.matrices or matrices_of(op, stores=stores)
        return (replace(op, engine="direct" if how is None else "matrix", matrices=how),)

    return rewrite_kernel(kernel, change)
