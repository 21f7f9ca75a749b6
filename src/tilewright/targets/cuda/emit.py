"""The CUDA target's passes, and CUDA C++ text from a lowered kernel."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import TypeAlias

from tilewright.arch import Arch
from tilewright.ir.async_legality import known_box
from tilewright.ir.copies import Copy, is_bulk
from tilewright.ir.kernel import Kernel, TensorMap
from tilewright.ir.ops import Mma, Op
from tilewright.passes.expand_mma import OPERANDS, wait_for_multiplies
from tilewright.passes.idle_waits import IDLE_WAITS
from tilewright.passes.memory_instructions import WIDTHS, matrices_of, settle_async
from tilewright.passes.packed import PACKED, look_up_packed
from tilewright.passes.pipeline import Pass, Passed, run_passes
from tilewright.passes.quotients import INVERSES
from tilewright.passes.relayout import relayout_shared
from tilewright.passes.rewrite import Rewriter, rewrite_kernel
from tilewright.passes.shared_plan import SHARED_PLAN
from tilewright.targets.atoms import multiplied_without_tensor_cores
from tilewright.targets.cuda.pairs import word_function
from tilewright.targets.cuda.prelude import DIALECT
from tilewright.targets.cuda.spelling import CUDA_RULES
from tilewright.targets.rules import EmittedText
from tilewright.targets.simt.banks import spread_over_banks
from tilewright.targets.simt.emit import emit_text
from tilewright.targets.target import CUDA

# ----------------------------------------------------------------
#
# Tensor maps: the tensor and box of a TMA copy, which the launcher fills in.


Key: TypeAlias = tuple[str, tuple[int, ...], tuple[int, ...], tuple[int, ...], bool]


def derive_tensor_maps(kernel: Kernel) -> Kernel:
    """Add a tensor map for each tensor and form of box of bulk copies, except copies by maps in memory."""
    maps: dict[Key, TensorMap] = {}
    for op in kernel.walk():
        if not is_bulk(op) or op.ends[0].tensor.map is not None or (key := _key(op)) in maps:
            continue
        tensor, box, order, steps, is_swizzled = key
        same = sum(1 for known in maps if known[0] == tensor)
        name = f"{tensor}_map" + (f"_{same}" if same else "")
        maps[key] = TensorMap(name, tensor, box, op.source.dtype, order, steps, is_swizzled)
    return replace(kernel, tensor_maps=tuple(maps.values())) if maps else kernel


def map_of(kernel: Kernel, op: Copy) -> TensorMap:
    """Return the map of a bulk copy."""
    return next(made for made in kernel.tensor_maps if made.key == _key(op))


def _key(op: Copy) -> Key:
    box = known_box(op)
    return op.ends[0].buffer.name, box.spans, box.order, box.steps, box.is_swizzled


# ---------------------------------------------------------------- copies by ``ldmatrix`` and ``stmatrix``
#
# `tilewright.passes.memory_instructions` checks that the fragment maps fit.


def choose_engines(kernel: Kernel, *, stores: bool) -> Kernel:
    """Choose the engine of each copy without one: matrix copies if they fit, else plain accesses.

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


# ---------------------------------------------------------------- passes, in order


PASSES: tuple[Pass, ...] = (
    PACKED,
    Pass(
        "tables",
        "Packed codes are looked up in tables of 16 numbers as they are unpacked, four at a time.",
        lambda kernel, arch: look_up_packed(kernel, lambda op: word_function(op) is not None),
    ),
    Pass(
        "at-once",
        "Synchronous products by asynchronous atoms get their fence, commit and wait.",
        lambda kernel, arch: wait_for_multiplies(kernel),
    ),
    Pass(
        "swizzles",
        "Shared tensors get a swizzle if their accesses would cause bank conflicts.",
        lambda kernel, arch: relayout_shared(kernel, spread_over_banks),
    ),
    WIDTHS,
    Pass(
        "settle-async",
        "Asynchronous copies that are too narrow for the hardware become synchronous.",
        lambda kernel, arch: settle_async(kernel, arch),
    ),
    OPERANDS,
    Pass(
        "engines",
        "Copies without engine= use ldmatrix and stmatrix if these fit, and plain accesses otherwise.",
        lambda kernel, arch: choose_engines(kernel, stores="sm_90" in arch.features),
    ),
    SHARED_PLAN,
    IDLE_WAITS,
    Pass(
        "tensor-maps",
        "Boxes that TMA copies get tensor maps.",
        lambda kernel, arch: derive_tensor_maps(kernel),
    ),
    INVERSES,
)


def lower(kernel: Kernel, arch: Arch) -> Passed:
    """Return the kernel that the text spells, and a note for each choice that was made."""
    return run_passes(kernel, arch, PASSES)


# ---------------------------------------------------------------- text


def emit(kernel: Kernel, arch: Arch | str) -> EmittedText:
    """Return the CUDA C++ text of a kernel, which includes no header.

    Args:
        kernel: the traced kernel; it must break no rule.
        arch: the architecture, or its name.

    Returns:
        The text, with the lowered kernel that it spells.
    """
    chosen = CUDA.architecture(arch)
    made = emit_text(kernel, lower(kernel, chosen), chosen, CUDA_RULES, DIALECT)
    atoms = dict.fromkeys(op.mma.atom for op in kernel.walk() if isinstance(op, Mma))
    said = (multiplied_without_tensor_cores(atom, chosen.name, chosen.features) for atom in atoms)
    return replace(made, notes=(*made.notes, *list(dict.fromkeys(filter(None, said)))))
