"""The instance with parts of A's copy left out: each part that the tuned template requires, and its cost."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

import tilewright as tw
from tilewright.inspect.isa import BankCounter, Conflicts, Isa, execute_listing, read_isa
from tilewright.ir.kernel import Kernel
from tilewright.ir.ops import Copy, Op
from tilewright.passes.pipeline import run_passes
from tilewright.passes.relayout import relayout_shared
from tilewright.passes.rewrite import Rewriter, rewrite_kernel
from tilewright.runtime import amdgcn
from tilewright.runtime.executable import Executable
from tilewright.targets.amd import GFX1151
from tilewright.targets.hip.emit import HIP_RULES, PASSES
from tilewright.targets.hip.prelude import DIALECT
from tilewright.targets.simt.banks import Serving, spread_over_banks
from tilewright.targets.simt.emit import emit_text

from .amd import ARCH, SPECS, bound, compiled
from .cost import Cost, Turn, cost_of

STORED = "to[8*j + i] = prefetched[8*j + i];"
ONE_BY_ONE = (
    "*(volatile __attribute__((address_space(3))) unsigned short*)&to[8*j + i] = prefetched[8*j + i].bits;"
)
"""Compilers join stores to neighbours again, unless each has to be one."""


@dataclass(frozen=True)
class Variant:
    """A variant of a kernel, and its properties.

    Args:
        made: the kernel.
        isa: its machine code.
        conflicts: bank conflicts of shared accesses, by line of the listing.
        cost: modelled cost of an iteration of its main loop.
    """

    made: Executable
    isa: Isa
    conflicts: dict[int, Conflicts]
    cost: Cost

    def met(self, *lines: Any) -> Conflicts:
        """Return the bank conflicts of some instructions."""
        return sum((self.conflicts[line.line] for line in lines), Conflicts())


def given(m: int, n: int, k: int) -> dict[str, Any]:
    """Return random arrays; the result is poisoned."""
    rng = np.random.default_rng(m + n + k)
    return {
        "A": rng.standard_normal((m, k)).astype(np.float16),
        "B": rng.standard_normal((k, n)).astype(tw.f8e4m3.numpy),
        "scale_a": np.ones(m, np.float32),
        "scale_b": rng.uniform(0.5, 2, n).astype(np.float32),
        "bias": rng.standard_normal(n).astype(np.float32),
        "D": np.full((m, n), np.nan, np.float16),
    }


def measured(made: Executable, arrays: dict[str, Any], turn: Turn) -> Variant:
    """Return the findings of executing a kernel's listing."""
    isa = read_isa(made.assembly)
    counter = BankCounter(isa.arch)
    execute_listing(made, arrays, {"alpha": 1.0}, counter)
    return Variant(made, isa, counter.lines, cost_of(isa, turn, counter.lines))


TURN = Turn(tile=(128, 256, 64), multiplied="f16", bytes=(2, 1), warps=8)


def _whole() -> Executable:
    return compiled("Default")


def _one_by_one(is_meant: Callable[[Copy], bool]) -> Kernel:
    """Return the lowered kernel with some copies element by element."""

    def change(op: Op, rewriter: Rewriter) -> Iterable[Op] | None:
        return (replace(op, vector=1),) if isinstance(op, Copy) and is_meant(op) else None

    made = _whole()
    assert made.listing is not None
    return rewrite_kernel(made.listing.kernel, change)


def _emitted(made: Executable, lowered: Kernel, old: str = "", new: str = "") -> Executable:
    """Emit a lowered kernel instead of an executable's, with a changed text."""
    listing = emit_text(made.kernel, (lowered, ()), GFX1151, HIP_RULES, DIALECT)
    assert listing.text.count(old) == 1 or not old
    listing = replace(listing, text=listing.text.replace(old, new) if old else listing.text)
    assembly = amdgcn.compile_text(listing.text, ARCH)
    return replace(made, listing=listing, assembly=assembly)


def _narrow_reads() -> Executable:
    return _emitted(_whole(), _one_by_one(lambda op: op.source.is_tensor and op.source.buffer.name == "A"))


def _narrow_writes() -> Executable:
    lowered = _one_by_one(lambda op: op.target.is_tensor and op.target.buffer.name == "sA")
    return _emitted(_whole(), lowered, STORED, ONE_BY_ONE)


def _without_extra_row() -> Executable:
    """Return the kernel without the extra row of A in shared memory, and without a swizzle instead."""
    made = bound(extra_rows=(0, 0)).compile(**SPECS, target="hip", arch=ARCH)
    serving = Serving(GFX1151.lanes, matrices=False, pairs=False)

    def spread(op: Any, using: Any) -> Any:
        return None if op.result.name == "sA" else spread_over_banks(op, using, serving)

    passes = tuple(
        replace(one, run=lambda kernel, arch: relayout_shared(kernel, spread))
        if one.name == "swizzles"
        else one
        for one in PASSES
    )
    return _emitted(made, run_passes(made.kernel, GFX1151, passes)[0])


def _other(**changes: Any) -> Executable:
    made: Executable = bound(**changes).compile(**SPECS, target="hip", arch=ARCH)
    return made


VARIANTS: dict[str, Callable[[], Executable]] = {
    "all three": _whole,
    "A read 2 bytes at a time": _narrow_reads,
    "A written to shared memory 2 bytes at a time": _narrow_writes,
    "no extra row between two K0 of A": _without_extra_row,
    "A distributed as by the template's cluster (4, 64, 1)": lambda: _other(dealt=((64, 4), (16, 16))),
    "B with the template's extra row, not swizzled": lambda: _other(extra_rows=(1, 1)),
}
"""The whole, without each of the three pieces of A's way, and two ways of the template's that are left."""


@functools.cache
def variant(name: str) -> Variant:
    """Return the findings of a variant."""
    return measured(VARIANTS[name](), given(128, 256, 128), TURN)
