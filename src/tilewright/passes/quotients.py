"""Address division by a run-time size, replaced by a multiplication with an inverse from the launcher.

An integer division takes some twenty instructions, and a view like im2col's needs several divisions per
access.  With ``inverse = (2**63 - 1) // d``,

    n // d == 2*(n + 1) * inverse >> 64        for 0 <= n < 2**31 - 1 and 1 <= d < 2**31

Proof: let ``n = q*d + s`` and ``inverse*d = 2**63 - 1 - r`` with ``s`` and ``r`` in ``[0, d)``.  The right
side is the floor of ``q + (s + 1)/d - e`` with ``e = (n + 1)*(1 + r) / (d * 2**63)``, and ``0 < e < 1/d``.

Source: D. Lemire, O. Kaser, N. Kurz, "Faster remainder by direct computation", 2019; here rounded down, so
that ``d = 1`` needs no case of its own.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from tilewright.ir.copies import is_by_threads
from tilewright.ir.kernel import Derived, Kernel, SizeParam
from tilewright.passes.pipeline import Pass
from tilewright.passes.rewrite import names_of
from tilewright.symbolic.expr import floordiv, maximum
from tilewright.symbolic.nodes import FloorDiv, Int, Mod, Sym, bounds
from tilewright.symbolic.rebuilding import parts, symbols

LARGEST = 2**63 - 1
"""Dividend of an inverse."""


def derive_inverses(kernel: Kernel) -> Kernel:
    """Add a derived size, the inverse, for every run-time divisor in the views of copies.

    The operations do not change.  Code generation looks up the inverse of a divisor with `inverses`.
    """
    if kernel.tensor_maps:  # with tensor maps, only sizes that an operation names are passed
        return kernel
    sizes = {param.sym for param in kernel.sizes if param.bits == 32}
    known = inverses(kernel)
    names = names_of(kernel)
    added: dict[Int, SizeParam] = {}
    for division in _divisions(kernel):
        divisor = division.right
        asked = not isinstance(divisor, int) and symbols(divisor) <= sizes
        if asked and bounds(division.left)[0] >= 0 and divisor not in known and divisor not in added:
            sym = Sym(names.unique("inverse"), 0, LARGEST)
            added[divisor] = SizeParam(sym, Derived(_inverse(divisor)), 64)
    return replace(kernel, params=(*kernel.params, *added.values())) if added else kernel


INVERSES = Pass(
    "inverses",
    "Divisions of indices by sizes become multiplications by inverses that the launcher computes.",
    lambda kernel, arch: derive_inverses(kernel),
)


def inverses(kernel: Kernel) -> dict[Int, Sym]:
    """Return the inverses that a kernel has, by divisor."""
    derived = [param for param in kernel.sizes if isinstance(param.source, Derived) and param.bits == 64]
    found = {param.source.value: param.sym for param in derived if isinstance(param.source, Derived)}
    if not found:
        return {}
    divisors = {division.right for division in _divisions(kernel)}
    return {divisor: found[_inverse(divisor)] for divisor in divisors if _inverse(divisor) in found}


def _inverse(divisor: Int) -> Int:
    # An empty array may make a divisor of 0 or less; then nothing is divided.
    return floordiv(LARGEST, maximum(divisor, 1))


def _divisions(kernel: Kernel) -> Iterator[FloorDiv | Mod]:
    """Yield the divisions in the views that copies access, in program order."""
    for op in kernel.walk():
        if not is_by_threads(op):
            continue
        for value in (op.source, op.target):
            if value.is_tensor:
                view = value.tensor.view
                for what in (view.offset, view.valid):
                    yield from (part for part in parts(what) if isinstance(part, FloorDiv | Mod))
