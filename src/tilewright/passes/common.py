"""Passes that several targets share, as entries for their pass tuples."""

from __future__ import annotations

from tilewright.passes.expand_mma import expand_mma
from tilewright.passes.idle_waits import drop_idle_waits
from tilewright.passes.memory_instructions import resolve_vectors
from tilewright.passes.packed import copy_bytes
from tilewright.passes.pipeline import Pass
from tilewright.passes.quotients import derive_inverses
from tilewright.passes.shared_plan import plan_shared

PACKED = Pass(
    "packed",
    "Elements of less than a byte are copied as bytes, and converted in registers.",
    lambda kernel, arch: copy_bytes(kernel),
)
WIDTHS = Pass(
    "widths",
    "Copies get the widest accesses that are legal.",
    lambda kernel, arch: resolve_vectors(kernel),
)
OPERANDS = Pass(
    "operands",
    "Matrix multiplies load their operands into registers.",
    lambda kernel, arch: expand_mma(kernel),
)
SHARED_PLAN = Pass(
    "shared-plan",
    "Shared tensors with disjoint lifetimes share the same bytes.",
    lambda kernel, arch: plan_shared(kernel),
)
IDLE_WAITS = Pass(
    "idle-waits",
    "Waits and barriers that have nothing to wait for are removed.",
    lambda kernel, arch: drop_idle_waits(kernel),
)
INVERSES = Pass(
    "inverses",
    "Divisions of indices by sizes become multiplications by inverses that the launcher computes.",
    lambda kernel, arch: derive_inverses(kernel),
)
