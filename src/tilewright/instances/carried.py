"""An instance as a schedule of this library: the same tiles, and in words what is another here."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from tilewright.arch import Arch
from tilewright.dtypes import DType, dtype
from tilewright.errors import LaunchError, close_to, shown
from tilewright.instances.template import Template
from tilewright.instances.words import PASS_THROUGH
from tilewright.ir.mma import MmaAtom
from tilewright.schedule.schedule import Schedule
from tilewright.targets.atoms import MMA_F64, TENSOR_CORE, fma
from tilewright.targets.target import TARGETS, Target

BAND = 8
"""Rows of tiles that blocks take column by column, in the order that the template's grid has."""

ACTIVATIONS = {
    "Relu": "relu",
    "Gelu": "gelu",
    "FastGelu": "gelu_tanh",
    "Silu": "silu",
    "Swish": "silu",
    "Sigmoid": "sigmoid",
    "TanH": "tanh",
}
"""What `tw.matmul` calls the element operations of a result that it knows."""


WARP, ATOM_ROWS = 32, 16
"""Threads of a warp, and rows of its widest instruction here."""


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
    """The target and the machine of an architecture, or of a target.

    Raises:
        LaunchError: no such architecture.

    Example:
        >>> place_of("sm_80").target.name, place_of("cpu").target.name
        ('cuda', 'cpu')
    """
    running = {target.name: target for target in TARGETS.values() if not target.missing}
    if name in running:
        target = running[name]
        return Place(target, target.architecture(target.arch or next(iter(target.architectures))))
    for target in running.values():
        if name in target.architectures:
            return Place(target, target.architectures[name])
    known = [*running, *(arch for target in running.values() for arch in target.architectures)]
    said = f"{', '.join(known)}{close_to(name, known)}"
    raise LaunchError(f"schedule(arch={shown(name)}): nothing here runs on it; known: {said}")


def schedule_of(instance: Template, place: Place) -> Schedule:
    """The schedule that computes an instance's tiles, with its steps, its waves and its way out."""
    atom, warps = _atom(instance, place), _warps(instance)
    prefetched = instance.num_prefetch == 1
    past = "".join(side for side, enabled in zip("ab", instance.enable_lds, strict=True) if not enabled)
    depth = -(-instance.k_per_block // atom.shape[2]) * atom.shape[2]
    return Schedule(
        atom,
        (instance.m_per_block, instance.n_per_block, depth),
        warps=warps,
        stages=1 if prefetched else instance.num_prefetch + 1,
        staging="registers" if prefetched else "cp_async",
        group_m=BAND,
        epilogue="staged",
        bypass=past,
    )


def _warps(instance: Template) -> tuple[int, int]:
    """Warps along M and N: a wave of 64 threads is two of them, side by side along its longer side."""
    (m, n), each = instance.waves, instance.wave_size // WARP
    rows, columns = instance.m_per_block // m, instance.n_per_block // n
    along_m = rows >= columns and rows % (each * ATOM_ROWS) == 0
    return (m * each, n) if along_m else (m, n * each)


def _atom(instance: Template, place: Place) -> MmaAtom:
    """The instruction that multiplies these dtypes with all of their bits, else a multiply-add."""
    kind, sums = instance.dtypes[0], _sums(instance)
    found = MMA_F64 if kind.name == "f64" else TENSOR_CORE.get(kind.name)
    has_feature = found is not None and (not place.target.warps or found.feature in place.arch.features)
    if found is not None and has_feature and found.precision is None and found.c_dtype == sums:
        return found
    (m, n), (rows, columns) = _warps(instance), (instance.m_per_block, instance.n_per_block)
    each = tuple(
        max(min(4, extent // (count * lanes)), 1) for extent, count, lanes in ((rows, m, 4), (columns, n, 8))
    )
    return fma(kind, sums, each=(each[0], each[1]))


def _sums(instance: Template) -> DType:
    """In what products are added here: f32 of narrow floats, whatever the instance says."""
    kind, acc = instance.dtypes[0], dtype(instance.acc_dtype)
    return kind.computed if kind.is_float else acc


# ---------------------------------------------------------------- what is another here


def notes_of(instance: Template, place: Place) -> Iterator[str]:
    """What of an instance is not as it says under `schedule_of`, each beginning with the field."""
    yield from _of_instruction(instance, place)
    yield from _of_threads(instance, place)
    yield from _of_transfers(instance)
    yield from _of_result(instance)
    yield from _of_pipeline(instance)
    yield from _of_problem(instance)


def _of_instruction(instance: Template, place: Place) -> Iterator[str]:
    atom, matrix = _atom(instance, place), instance.matrix
    size = " x ".join(map(str, instance.instruction))
    yield f"m_per_{matrix}, n_per_{matrix}: {size} by {matrix.upper()} is multiplied by {atom}"
    if instance.k_per_block % atom.shape[2]:
        depth = schedule_of(instance, place).block_k
        yield f"k_per_block: steps are {depth} deep, not {instance.k_per_block}: {atom} is {atom.shape[2]}"
    acc = dtype(instance.acc_dtype)
    if acc != atom.c_dtype:
        yield f"acc_dtype: sums are in {atom.c_dtype}, not in {acc}"


def _of_threads(instance: Template, place: Place) -> Iterator[str]:
    (m, n), (rows, columns) = _warps(instance), instance.waves
    size = instance.wave_size
    warps = "" if size == WARP else f" of {size} threads are {m} x {n} warps of {WARP}, which"
    yield (
        f"block_size: {rows} x {columns} waves{warps} take neighbouring rows and columns each, "
        f"{instance.m_per_block // m} x {instance.n_per_block // n}; their repeats are not interleaved"
    )
    if not place.target.warps and place.target.machine_code:
        yield f"block_size: a block of {instance.block_size} threads runs on one thread of {place.arch.name}"


def _of_transfers(instance: Template) -> Iterator[str]:
    for side, enabled, transfer in zip("ab", instance.enable_lds, instance.transfers, strict=True):
        name, matrix = f"{side}_block_transfer", side.upper()
        if not enabled:
            yield (
                f"{name}: {matrix} goes past shared memory; each thread reads the elements that its "
                "instruction multiplies, not K1 neighbours"
            )
            continue
        yield (
            f"{name}: which thread copies what, in which order and how wide, follows from the array: in as "
            "few sectors and as wide as it allows"
        )
        extra = " with a row more" if transfer.lds_extra else ""
        yield (
            f"{name}.lds_extra: a tile of {matrix} lies in shared memory as it is read best here, without "
            f"room between its rows, not as (K0, rows, K1){extra}"
        )


def _of_result(instance: Template) -> Iterator[str]:
    yield (
        "c_shuffle: the result goes through shared memory in slices of its columns and is stored as wide as "
        "the array allows; repeats per shuffle, cluster lengths and vectors are not carried over"
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
            f'tw.matmul(activation="{known}") does' if known else "a dataflow kernel says it in its body"
        )
        yield f"{side}_element_op: {op} is no part of a schedule; {instead}"


def _of_pipeline(instance: Template) -> Iterator[str]:
    if instance.num_prefetch > 1:
        yield (
            f"num_prefetch: {instance.num_prefetch} steps are on their way into shared memory of "
            f"{instance.num_prefetch + 1} stages, not into registers; any number of steps is taken"
        )
    if instance.pipeline_version != "v1":
        yield f"pipeline_version: {instance.pipeline_version} is computed as v1; any number of steps is taken"
    if instance.loop_scheduler != "Default":
        yield f"loop_scheduler: {instance.loop_scheduler} is not carried over; the machine schedules warps"


def _of_problem(instance: Template) -> Iterator[str]:
    yield (
        f"gemm_specialization: beyond {instance.gemm_specialization}, M, N and K may be ragged, and strides "
        "any; what lies outside of an array is neither read nor written"
    )
