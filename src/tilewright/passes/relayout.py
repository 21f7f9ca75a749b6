"""New layouts for shared tensors whose addresses no operation observes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

from tilewright.ir.async_ops import MmaAsync
from tilewright.ir.builder import make
from tilewright.ir.copies import is_bulk
from tilewright.ir.kernel import Kernel
from tilewright.ir.ops import Gather, Op, Reshape, Shared
from tilewright.ir.verify import broken_rules
from tilewright.passes.rewrite import Change, rewrite_kernel
from tilewright.views.questions import strides
from tilewright.views.transforms import Swizzle
from tilewright.views.view import View

Choice: TypeAlias = View | tuple[Swizzle, ...] | None
Policy: TypeAlias = Callable[[Shared, tuple[Op, ...]], Choice]
"""Maps a shared tensor and the operations that use it to another view of the same shape, to swizzles to apply
in order, or to None for no change."""


def uses(kernel: Kernel, op: Shared) -> tuple[Op, ...]:
    """Return the operations that name a shared tensor or a view of it, in program order."""
    return tuple(o for o in kernel.walk() if any(v.buffer is op.result for v in o.operands))


def observes_addresses(op: Op) -> bool:
    """Return whether an operation depends on element addresses, or makes neighbours in memory unknown.

    Swizzles of offsets, asynchronous hardware, and rows chosen by an index in memory do.
    """
    if is_bulk(op) or isinstance(op, MmaAsync | Gather):
        return True
    return isinstance(op, Reshape) and isinstance(op.transform, Swizzle)


def relayout_shared(kernel: Kernel, policy: Policy) -> tuple[Kernel, tuple[str, ...]]:
    """Give shared tensors the layout that the policy chooses, unless it breaks a rule.

    Args:
        kernel: the kernel.
        policy: called with each shared tensor whose addresses no operation observes, and its uses.

    Returns:
        The kernel, and a note for each tensor, e.g. ``"sA re-laid out: swizzle<2, 3, 3>"``.
    """
    notes: list[str] = []
    for op in [op for op in kernel.walk() if isinstance(op, Shared)]:
        present = next(o for o in kernel.walk() if isinstance(o, Shared) and o.result.name == op.result.name)
        using = uses(kernel, present)
        if any(observes_addresses(user) for user in using):
            continue
        choice = policy(present, using)
        if choice is None or choice in ((), present.view):
            continue
        view, what = _chosen(present.view, choice)
        # Keep the elements that the author allocated beyond the layout; the new layout may need more.
        assert isinstance(view.elems, int)
        elems = max(view.elems, present.elems)
        at = present.at if elems == present.elems else None
        kept: dict[str, Any] = {"dtype": present.dtype, "view": view, "elems": elems, "align": present.align}
        moved = (make(Shared, present.result.name, present.location, **kept, at=at),)
        changed = rewrite_kernel(kernel, _replacing(present, moved))
        if _broken(changed, op.result.name) > _broken(kernel, op.result.name):
            continue
        kernel = changed
        notes.append(f"{op.result} re-laid out: {what}")
    return kernel, tuple(notes)


def _replacing(old: Op, new: tuple[Op, ...]) -> Change:
    return lambda op, rewriter: new if op is old else None


def _broken(kernel: Kernel, buffer: str) -> int:
    """Return the number of rules that the uses of a shared tensor break."""
    using = (op for op in kernel.walk() if any(v.buffer.name == buffer for v in op.operands))
    return sum(1 for op in using for _ in broken_rules(op))


def _chosen(present: View, choice: View | tuple[Swizzle, ...]) -> tuple[View, str]:
    """Return the view that a policy chose, and its name."""
    if isinstance(choice, View):
        return choice, describe(choice)
    view = present
    for swizzle in choice:
        view = swizzle.apply(view)
    return view, " then ".join(f"swizzle<{s.bits}, {s.base}, {s.shift}>" for s in choice)


def describe(view: View) -> str:
    """Return the strides of a view if they describe it fully, otherwise its text.

    Example:
        >>> describe(View.strided((64, 32), (40, 1)))
        'strides (40, 1)'
    """
    known = strides(view)
    plain = known is not None and View.strided(view.shape, known).offset == view.offset
    return f"strides {known}" if plain else str(view)
