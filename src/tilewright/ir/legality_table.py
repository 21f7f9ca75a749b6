"""The table from operation classes to the legality rules that hold on every target.

`Op.verify` checks only an operation's own fields.  The rules here also check its operands.  Operations do not
import the rules, so the rules may import the operations.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from tilewright.errors import Violation
from tilewright.ir.async_legality import verify_mma_async, verify_role
from tilewright.ir.async_ops import MmaAsync, Role
from tilewright.ir.bulk_legality import verify_bulk_copy
from tilewright.ir.copies import ENGINES, Copy
from tilewright.ir.elementwise_legality import verify_elementwise, verify_fill, verify_fragment
from tilewright.ir.legality import verify_async_copy, verify_copy, verify_matrix_copy, verify_mma
from tilewright.ir.op import Op
from tilewright.ir.ops import Elementwise, Fill, Fragment, Mma, Shared
from tilewright.ir.shared_legality import verify_shared


def broken_rules(op: Op) -> Iterator[Violation]:
    """Return the rules that an operation breaks on any target."""
    yield from op.verify()
    if (rules := LEGALITY.get(type(op))) is not None:
        yield from rules(op)


def _verify_engine(op: Copy) -> Iterator[Violation]:
    """Check engine, memories and completion of a copy, then the rules of the engine."""
    engine = ENGINES.get(op.variant)
    if engine is None:
        yield op.violation("engine", f"there is no engine {op.engine!r}", " or ".join(ENGINES))
        return
    yield from BY_ENGINE[op.variant](op)
    if op.way in engine.ways:
        yield from engine.verify_ends(op)
    for value in (op.source, op.target):
        if op.variant != "direct" and value.is_tensor and value.tensor.block is not None:
            text = f"the {op.variant} engine reaches no other block's memory, where {value} lies"
            yield op.violation("engine", text, "copy")


BY_ENGINE: Mapping[str, Callable[[Copy], Iterator[Violation]]] = {
    "direct": verify_copy,
    "matrix": verify_matrix_copy,
    "async": verify_async_copy,
    "bulk": verify_bulk_copy,
}
"""The rules of copies, by engine."""

LEGALITY: Mapping[type[Op], Callable[[Any], Iterator[Violation]]] = {
    Copy: _verify_engine,
    Elementwise: verify_elementwise,
    Fill: verify_fill,
    Fragment: verify_fragment,
    Mma: verify_mma,
    MmaAsync: verify_mma_async,
    Role: verify_role,
    Shared: verify_shared,
}
"""The rules of each operation class whose legality depends on its operands."""
