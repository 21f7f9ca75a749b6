"""Translates an instance to a schedule with the same tiles, and lists the differences."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from tilewright.arch import Arch
from tilewright.dtypes import DType, dtype
from tilewright.errors import LaunchError, close_to, shown
from tilewright.instances.template import Template
from tilewright.instances.words import PASS_THROUGH, padded_dims
from tilewright.ir.mma import MmaAtom
from tilewright.schedule.schedule import Schedule
from tilewright.targets.atoms import MMA_F64, TENSOR_CORE, fma
from tilewright.targets.matrix_cores import MATRIX_CORES
from tilewright.targets.target import HIP, TARGETS, Target

BAND = 8
"""Rows of tiles in a band, whose blocks run column by column as in the template's grid."""

WARP, ATOM_ROWS = 32, 16
"""Threads of a warp, and rows of its widest instruction."""

INSTRUCTIONS = {"wmma": "wmma", "xdl": "mfma"}
"""Our names of the matrix instructions of instances."""

ACCESS_BYTES = 16
"""Bytes of a thread's widest access."""


@dataclass(frozen=True)
class InstanceMachine:
    """A target and its architecture."""

    target: Target
    arch: Arch


def place_of(name: str) -> InstanceMachine:
    """Return the target and the architecture of a name, which may also be that of a target.

    Raises:
        LaunchError: the name is unknown.

    Example:
        >>> place_of("sm_80").target.name, place_of("cpu").target.name
        ('cuda', 'cpu')
    """
    running = {target.name: target for target in TARGETS.values() if target != HIP}
    if name in running:
        target = running[name]
        return InstanceMachine(target, target.architecture(target.arch or next(iter(target.architectures))))
    for target in TARGETS.values():
        if name in target.architectures:
            return InstanceMachine(target, target.architectures[name])
    known = [*running, *(arch for target in TARGETS.values() for arch in target.architectures)]
    said = f"{', '.join(known)}{close_to(name, known)}"
    raise LaunchError(f"schedule(arch={shown(name)}): no target has this architecture; known: {said}")


def schedule_of(instance: Template, place: InstanceMachine, b_memory: DType | None = None) -> Schedule:
    """Return the schedule with an instance's tiles, steps, waves and epilogue.

    Args:
        instance: the instance.
        place: the target and its architecture.
        b_memory: the dtype of B in memory, if it is widened before the multiply.
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
    if own_atom(instance, place) is None:
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
    """Return the grid of threads that copies an operand, its extra rows, and its letter if it is transposed.

    Neighbouring threads copy 16 bytes each along K, and the extra row spreads their writes over the banks.
    An operand that is contiguous along its rows is read along them, 16 bytes at once, and written along K.
    It has no extra row: a lowering pass swizzles its tile, which avoids more bank conflicts.
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


def own_atom(instance: Template, place: InstanceMachine) -> MmaAtom | None:
    """Return the deepest instruction of an instance that divides its steps, if the architecture has one."""
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


def warps_of(instance: Template, place: InstanceMachine) -> tuple[int, int]:
    """Return the warps along M and N: a wave of 64 threads is two warps of 32 along its longer side."""
    (m, n), each = instance.waves, max(instance.wave_size // _lanes(place), 1)
    rows, columns = instance.m_per_block // m, instance.n_per_block // n
    along_m = rows >= columns and rows % (each * ATOM_ROWS) == 0
    return (m * each, n) if along_m else (m, n * each)


def _lanes(place: InstanceMachine) -> int:
    """Return the threads of a warp; `WARP` for a target without warps."""
    return place.arch.lanes if place.target.warps else WARP


def atom_of(instance: Template, place: InstanceMachine) -> MmaAtom:
    """Return the instruction for the instance's dtypes with all of their bits, else a multiply-add."""
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
    return fma(kind, sums, lanes=(_lanes(place) // 8, 8), each=(each[0], each[1]))


def _sums(instance: Template) -> DType:
    """Return the dtype of sums: f32 for narrow floats, also if the instance has another one."""
    kind, acc = instance.dtypes[0], dtype(instance.acc_dtype)
    return kind.computed if kind.is_float else acc


# ----------------------------------------------------------------
# Notes: differences between an instance and its schedule, in words.


ACTIVATIONS = {
    "Relu": "relu",
    "Gelu": "gelu",
    "FastGelu": "gelu_tanh",
    "Silu": "silu",
    "Swish": "silu",
    "Sigmoid": "sigmoid",
    "TanH": "tanh",
}
"""Activations of `tw.matmul` for element operations of the result."""


def notes_of(instance: Template, place: InstanceMachine) -> Iterator[str]:
    """Yield the differences between an instance and `schedule_of`, each beginning with the field."""
    own, schedule = own_atom(instance, place), schedule_of(instance, place)
    atom, matrix, specialization = schedule.atom, instance.matrix, instance.gemm_specialization
    size = " x ".join(map(str, instance.instruction))
    if atom.shape != instance.instruction:
        yield f"m_per_{matrix}, n_per_{matrix}: {size} by {matrix.upper()} is multiplied by {atom}"
    if (given := instance.k_per_block) % atom.shape[2]:
        depth = schedule.block_k
        yield f"k_per_block: steps are {depth} deep, not {given}: {atom} is {atom.shape[2]}"
    acc = dtype(instance.acc_dtype)
    if acc != atom.c_dtype:
        yield f"acc_dtype: sums are in {atom.c_dtype}, not in {acc}"
    if own is None:
        (m, n), (rows, columns) = warps_of(instance, place), instance.waves
        wave = instance.wave_size
        warps = "" if wave == WARP else f" of {wave} threads are {m} x {n} warps of {WARP}, which"
        yield (
            f"block_size: {rows} x {columns} waves{warps} take neighbouring rows and columns each, "
            f"{instance.m_per_block // m} x {instance.n_per_block // n}; their repeats are not interleaved"
        )
        if not place.target.warps and place.target.machine_code:
            block = instance.block_size
            yield f"block_size: a block of {block} threads runs on one thread of {place.arch.name}"
    yield from _of_transfers(instance) if own is None else _of_own_transfers(instance, schedule)
    yield from _of_result(instance)
    if (count := instance.num_prefetch) > 1:
        yield (
            f"num_prefetch: {count} steps are on their way into shared memory of {count + 1} stages, "
            "not into registers; any number of steps is taken"
        )
    if instance.pipeline_version != "v1":
        yield f"pipeline_version: {instance.pipeline_version} is computed as v1; any number of steps is taken"
    if instance.loop_scheduler != "Default":
        yield f"loop_scheduler: {instance.loop_scheduler} is ignored; the hardware schedules warps"
    if own is None:
        yield (
            f"gemm_specialization: beyond {specialization}, M, N and K may be ragged, and strides any; what "
            "lies outside of an array is neither read nor written"
        )
    elif schedule.whole != "mnk":
        yield (
            f"gemm_specialization: {specialization} needs K to be a multiple of the vector; here ragged "
            "rows are read with the width of their alignment"
        )


def _of_transfers(instance: Template) -> Iterator[str]:
    for side, enabled, transfer in zip("ab", instance.enable_lds, instance.transfers, strict=True):
        name, matrix = f"{side}_block_transfer", side.upper()
        if not enabled:
            yield (
                f"{name}: {matrix} bypasses shared memory; each thread reads the elements that its "
                "instruction multiplies, not K1 neighbours"
            )
            continue
        yield (
            f"{name}: which thread copies what, in which order and how wide, follows from the array: in as "
            "few sectors and as wide as it allows"
        )
        extra = " with an extra row" if transfer.lds_extra else ""
        yield (
            f"{name}.lds_extra: a tile of {matrix} has the shared-memory layout that is read fastest here, "
            f"without padding between its rows, not (K0, rows, K1){extra}"
        )


def _of_own_transfers(instance: Template, schedule: Schedule) -> Iterator[str]:
    """Yield differences in the threads of copies, which follow from banks and the contiguous dimension."""
    for at, (transfer, (rows, along_k)) in enumerate(zip(instance.transfers, schedule.dealt, strict=True)):
        name, matrix = f"{'ab'[at]}_block_transfer", "AB"[at]
        if not instance.enable_lds[at]:
            yield f"{name}: {matrix} bypasses shared memory: its instruction reads it from registers"
            continue
        lengths = (along_k, rows, 1)
        if "ab"[at] in schedule.turned:
            yield (
                f"{name}: {rows} x {along_k} threads read {matrix} along its rows, 16 bytes at once, not "
                f"{transfer.src_scalar_per_vector} element(s), and transpose their parts in registers"
            )
            if transfer.lds_extra:
                yield (
                    f"{name}.lds_extra: a swizzle instead of an extra row avoids bank conflicts of the writes"
                )
        elif lengths != transfer.thread_cluster_lengths:
            yield (
                f"{name}.thread_cluster_lengths: {lengths}, not {transfer.thread_cluster_lengths}: eight "
                "threads then write to different banks at once"
            )


def _of_result(instance: Template) -> Iterator[str]:
    yield (
        "c_shuffle: the result goes through shared memory in slices of its columns and is stored as wide as "
        "the array allows; repeats per shuffle, cluster lengths and vectors are ignored"
    )
    if dtype(instance.c_shuffle_dtype) != dtype(instance.c_dtype):
        yield (
            f"c_shuffle_dtype: the result goes through shared memory as {instance.c_dtype}, "
            f"not as {instance.c_shuffle_dtype}"
        )
    for side in "abc":
        op = getattr(instance, f"{side}_element_op")
        if op == PASS_THROUGH:
            continue
        known = ACTIVATIONS.get(op) if side == "c" else None
        instead = (
            f'tw.matmul(activation="{known}") does'
            if known
            else "write it in the body of the dataflow kernel"
        )
        yield f"{side}_element_op: {op} is no part of a schedule; {instead}"
