"""An instance as a schedule of this library: the same tiles."""

from __future__ import annotations

from dataclasses import dataclass, replace

from tilewright.arch import Arch
from tilewright.dtypes import DType, dtype
from tilewright.errors import LaunchError, close_to, shown
from tilewright.instances.template import Template
from tilewright.instances.words import padded_dims
from tilewright.ir.mma import MmaAtom
from tilewright.schedule.schedule import Schedule
from tilewright.targets.atoms import MMA_F64, TENSOR_CORE, fma
from tilewright.targets.matrix_cores import MATRIX_CORES
from tilewright.targets.target import HIP, TARGETS, Target

BAND = 8
"""Rows of tiles that blocks take column by column, in the order that the template's grid has."""

WARP, ATOM_ROWS = 32, 16
"""Threads of a warp, and rows of its widest instruction here."""

INSTRUCTIONS = {"wmma": "wmma", "xdl": "mfma"}
"""What the instructions that instances name are called here."""

ACCESS_BYTES = 16
"""Of a thread's widest access."""


@dataclass(frozen=True)
class Place:
    """Where a schedule runs.

    Args:
        target: the target.
        arch: its machine.
    """

    target: Target
    arch: Arch


def place_of(name: str) -> Place:
    """The target and the machine of an architecture, or of a target that runs on any machine.

    Raises:
        LaunchError: no such architecture.

    Example:
        >>> place_of("sm_80").target.name, place_of("cpu").target.name
        ('cuda', 'cpu')
    """
    running = {target.name: target for target in TARGETS.values() if target != HIP}
    if name in running:
        target = running[name]
        return Place(target, target.architecture(target.arch or next(iter(target.architectures))))
    for target in TARGETS.values():
        if name in target.architectures:
            return Place(target, target.architectures[name])
    known = [*running, *(arch for target in TARGETS.values() for arch in target.architectures)]
    said = f"{', '.join(known)}{close_to(name, known)}"
    raise LaunchError(f"schedule(arch={shown(name)}): nothing here runs on it; known: {said}")


def schedule_of(instance: Template, place: Place, b_memory: DType | None = None) -> Schedule:
    """The schedule that computes an instance's tiles, with its steps, its waves and its way out.

    Args:
        instance: the instance.
        place: where it runs.
        b_memory: the dtype of B in memory, where it is another than that which is multiplied.
    """
    atom, warps = atom_of(instance, place), warps_of(instance, place)
    prefetched = instance.num_prefetch == 1
    past = "".join(side for side, enabled in zip("ab", instance.enable_lds, strict=True) if not enabled)
    depth = -(-instance.k_per_block // atom.shape[2]) * atom.shape[2]
    made = Schedule(
        atom,
        (instance.m_per_block, instance.n_per_block, depth),
        warps=warps,
        stages=1 if prefetched else instance.num_prefetch + 1,
        staging="registers" if prefetched else "cp_async",
        group_m=BAND,
        epilogue="staged",
        bypass=past,
    )
    if not is_own(instance, place):
        return made
    a, b = instance.dtypes
    sides = [_placed(instance, side, kind) for side, kind in enumerate((a, b_memory or b))]
    (of_a, of_b), extra, turned = zip(*sides, strict=True)
    padded = padded_dims(instance.gemm_specialization)
    return replace(
        made,
        k1=instance.k1s,
        extra_rows=extra,
        dealt=(of_a, of_b),
        turned="".join(turned) if prefetched else "",
        whole="".join(dim.lower() for dim in "MNK" if dim not in padded),
        interleaved=True,
    )


def _placed(instance: Template, side: int, kind: DType) -> tuple[tuple[int, int], int, str]:
    """Of an operand the threads that it is dealt to, its extra rows, and its letter if it is turned around.

    Along K threads lie side by side, each with 16 bytes, so that what they write at once is in other banks by
    the extra row.  What is contiguous along its rows they read in 16 bytes along these, and write along K; it
    has no extra row, for then the pass that swizzles finds a better way.
    """
    k0, rows, k1 = instance.tiles[side]
    depth, each, read = k0 * k1, rows * k0 * k1 // instance.threads, ACCESS_BYTES // kind.bytes
    if instance.contiguous("AB"[side]) == "K":
        grid = (instance.threads * read // depth, depth // read)
        fits = depth % read == 0 and instance.threads * read % depth == 0 and rows % max(grid[0], 1) == 0
        return grid if fits else (0, 0), int(instance.transfers[side].lds_extra), ""
    along_rows = min(read, each // 2)
    if along_rows < 1 or rows % along_rows or depth * along_rows % each:
        return (0, 0), int(instance.transfers[side].lds_extra), ""
    return (rows // along_rows, depth * along_rows // each), 0, "ab"[side]


def is_own(instance: Template, place: Place) -> bool:
    """Whether the machine has the waves that an instance is made for, and its instruction."""
    return own_atom(instance, place) is not None


def own_atom(instance: Template, place: Place) -> MmaAtom | None:
    """The instruction of an instance, as deep as a lane reads at once, where the machine has it."""
    (m, n, _), kind, sums = instance.instruction, instance.dtypes[0], _sums(instance)
    fitting = (
        atom
        for atom in MATRIX_CORES.values()
        if (atom.a_dtype, atom.c_dtype, atom.lanes) == (kind, sums, instance.wave_size)
        and atom.instruction == INSTRUCTIONS[instance.matrix]
        and (atom.feature in place.arch.features and atom.shape[:2] == (m, n))
        and instance.k_per_block % atom.shape[2] == 0
    )
    return max(fitting, key=lambda atom: atom.shape[2], default=None)


def warps_of(instance: Template, place: Place) -> tuple[int, int]:
    """Warps along M and N: a wave of 64 threads is two of 32, side by side along its longer side."""
    (m, n), each = instance.waves, max(instance.wave_size // _lanes(place), 1)
    rows, columns = instance.m_per_block // m, instance.n_per_block // n
    along_m = rows >= columns and rows % (each * ATOM_ROWS) == 0
    return (m * each, n) if along_m else (m, n * each)


def _lanes(place: Place) -> int:
    """Threads of a warp of the machine; of one without warps those that others have."""
    return place.arch.lanes if place.target.warps else WARP


def atom_of(instance: Template, place: Place) -> MmaAtom:
    """The instruction that multiplies these dtypes with all of their bits, else a multiply-add."""
    if (own := own_atom(instance, place)) is not None:
        return own
    kind, sums = instance.dtypes[0], _sums(instance)
    found = MMA_F64 if kind.name == "f64" else TENSOR_CORE.get(kind.name)
    has_feature = found is not None and (not place.target.warps or found.feature in place.arch.features)
    if found is not None and has_feature and found.precision is None and found.c_dtype == sums:
        return found
    (m, n), (rows, columns) = warps_of(instance, place), (instance.m_per_block, instance.n_per_block)
    each = tuple(
        max(min(4, extent // (count * beside)), 1)
        for extent, count, beside in ((rows, m, _lanes(place) // 8), (columns, n, 8))
    )
    lanes = _lanes(place)
    return fma(kind, sums, lanes=(lanes // 8, 8), each=(each[0], each[1]))


def _sums(instance: Template) -> DType:
    """In what products are added here: f32 of narrow floats, whatever the instance says."""
    kind, acc = instance.dtypes[0], dtype(instance.acc_dtype)
    return kind.computed if kind.is_float else acc
