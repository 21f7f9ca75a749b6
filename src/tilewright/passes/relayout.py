"""Re-laying out shared tensors whose addresses nobody observes."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeAlias

from tilewright.ir.builder import make
from tilewright.ir.kernel import Kernel
from tilewright.ir.ops import Op, Reshape, Shared
from tilewright.layout.nodes import Int, Sym
from tilewright.layout.transforms import Swizzle
from tilewright.layout.view import View
from tilewright.layout.walk import substitute
from tilewright.passes.rewrite import Rewriter, rewrite_kernel

Policy: TypeAlias = Callable[[Shared, tuple[Op, ...]], View | None]
"""Another view of the same shape for a shared tensor that these operations use, or None to leave it."""


def uses(kernel: Kernel, op: Shared) -> tuple[Op, ...]:
    """The operations that name a shared tensor or a view of it, in program order."""
    return tuple(o for o in kernel.walk() if any(v.buffer is op.result for v in o.operands))


def observes_addresses(op: Op) -> bool:
    """Whether an operation's meaning depends on where elements lie: only a swizzle of offsets does."""
    return isinstance(op, Reshape) and isinstance(op.transform, Swizzle)


def relayout_shared(kernel: Kernel, policy: Policy) -> tuple[Kernel, tuple[str, ...]]:
    """Give shared tensors another layout where the policy has one and no rule is broken by it.

    Args:
        kernel: the kernel.
        policy: called with each shared tensor whose addresses nobody observes, and its uses.

    Returns:
        The kernel, and a note for each tensor, e.g. ``"sA re-laid out: swizzle<2, 3, 3>"``.
    """
    notes: list[str] = []
    for op in [op for op in kernel.walk() if isinstance(op, Shared)]:
        present = next(o for o in kernel.walk() if isinstance(o, Shared) and o.result.name == op.result.name)
        using = uses(kernel, present)
        if any(observes_addresses(user) for user in using):
            continue
        view = policy(present, using)
        if view is None or view == present.view:
            continue
        changed = _with_view(kernel, present, view)
        if _broken(changed, op.result.name) > _broken(kernel, op.result.name):
            continue
        kernel = changed
        notes.append(f"{op.result} re-laid out: {describe(present.view, view)}")
    return kernel, tuple(notes)


def _with_view(kernel: Kernel, shared: Shared, view: View) -> Kernel:
    # What the author allocates beyond the layout stays; the new layout may need more.
    assert isinstance(view.elems, int)
    elems = max(view.elems, shared.elems)

    def change(op: Op, rewriter: Rewriter) -> Iterable[Op] | None:
        if op is not shared:
            return None
        name = shared.result.name
        return (
            make(Shared, name, op.location, dtype=shared.dtype, view=view, elems=elems, align=shared.align),
        )

    return rewrite_kernel(kernel, change)


def _broken(kernel: Kernel, buffer: str) -> int:
    """How many rules the uses of a shared tensor break."""
    using = (op for op in kernel.walk() if any(v.buffer.name == buffer for v in op.operands))
    return sum(1 for op in using for _ in op.verify())


def describe(old: View, new: View) -> str:
    """Name what was done to a view: a swizzle, other strides, or else its text.

    Example:
        >>> rows = View.strided((64, 32), (32, 1))
        >>> describe(rows, Swizzle(2, 3, 3).apply(rows))
        'swizzle<2, 3, 3>'
        >>> describe(rows, View.strided((64, 32), (40, 1)))
        'strides (40, 1)'
    """
    for bits in range(1, 5):
        for base in range(8):
            for shift in range(bits, 8):
                if _is_swizzle(old, new, Swizzle(bits, base, shift)):
                    return f"swizzle<{bits}, {base}, {shift}>"
    strides = tuple(_stride(new, coord) for coord in new.coords)
    if None not in strides and View.strided(new.shape, [s for s in strides if s is not None]) == new:
        return f"strides {strides}"
    return str(new)


def _is_swizzle(old: View, new: View, swizzle: Swizzle) -> bool:
    if isinstance(old.elems, int) and old.elems % (1 << (swizzle.base + swizzle.bits)):
        return False
    return swizzle.apply(old).offset == new.offset


def _stride(view: View, coord: Sym) -> Int | None:
    origin: dict[Sym, Int] = dict.fromkeys(view.coords, 0)
    start, step = (substitute(view.offset, {**origin, coord: at}) for at in (0, 1))
    return step - start if isinstance(step, int) and isinstance(start, int) else None
