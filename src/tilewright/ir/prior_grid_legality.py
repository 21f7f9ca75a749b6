"""The rules of grids that start before the previous grid has ended.

The launcher starts a kernel with `PriorGridWait` early.  Two rules make this correct:

- No block accesses global memory before the wait: the previous grid may not have written the data yet, or
  may still read it.
- Every block waits.  A block without a wait could end before the previous grid.  The next grid waits only for
  this grid, so its wait could end too early.
"""

from __future__ import annotations

from collections.abc import Iterator

from tilewright.errors import Violation
from tilewright.ir.async_ops import PriorGridWait, Role
from tilewright.ir.kernel import Kernel
from tilewright.ir.op import Block, Op
from tilewright.ir.types import Memory

RULE = "prior_grid_wait"


def violations(kernel: Kernel) -> Iterator[Violation]:
    """Yield accesses to global memory that may precede the wait, and waits that a block may skip."""
    if kernel.waits_for_prior_grid:
        yield from _block(kernel.body, False, True)


def _block(block: Block, waited: bool, always: bool) -> Iterator[Violation]:
    """Check a block; ``waited`` on entry, ``always`` executed."""
    for op in block.ops:
        if isinstance(op, PriorGridWait):
            if not (waited or always):
                yield op.violation(
                    RULE,
                    "a block may pass this wait by and end before the grid before it; "
                    "the next grid would not wait for that one",
                    "outside of the loop or branch",
                )
            waited = True
        elif not waited:
            yield from _early(op)
        for region in op.regions:
            yield from _block(region, waited, always and isinstance(op, Role))


def _early(op: Op) -> Iterator[Violation]:
    for verb, values in (("reads", op.read), ("writes", op.written)):
        for value in values:
            if value.is_tensor and value.tensor.memory is Memory.GLOBAL:
                yield op.violation(
                    RULE,
                    f"{op.verb} {verb} {value.buffer} before the wait for the grid before, which may not "
                    f"have {'written' if verb == 'reads' else 'read'} it yet",
                    "after tw.hopper.prior_grid_wait()",
                )
