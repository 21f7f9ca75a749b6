"""What of an instance is another under its schedule here, in words."""

from __future__ import annotations

from collections.abc import Iterator

from tilewright.dtypes import dtype
from tilewright.instances.carried import WARP, Place, atom_of, is_own, schedule_of, warps_of
from tilewright.instances.template import Template
from tilewright.instances.words import PASS_THROUGH

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


def notes_of(instance: Template, place: Place) -> Iterator[str]:
    """What of an instance is not as it says under `schedule_of`, each beginning with the field."""
    own = is_own(instance, place)
    yield from _of_instruction(instance, place)
    if not own:
        yield from _of_threads(instance, place)
    yield from _of_own_transfers(instance, place) if own else _of_transfers(instance)
    yield from _of_result(instance)
    yield from _of_pipeline(instance)
    yield from _of_own_problem(instance, place) if own else _of_problem(instance)


def _of_instruction(instance: Template, place: Place) -> Iterator[str]:
    atom, matrix = atom_of(instance, place), instance.matrix
    size = " x ".join(map(str, instance.instruction))
    if atom.shape != instance.instruction:
        yield f"m_per_{matrix}, n_per_{matrix}: {size} by {matrix.upper()} is multiplied by {atom}"
    if instance.k_per_block % atom.shape[2]:
        depth = schedule_of(instance, place).block_k
        yield f"k_per_block: steps are {depth} deep, not {instance.k_per_block}: {atom} is {atom.shape[2]}"
    acc = dtype(instance.acc_dtype)
    if acc != atom.c_dtype:
        yield f"acc_dtype: sums are in {atom.c_dtype}, not in {acc}"


def _of_threads(instance: Template, place: Place) -> Iterator[str]:
    (m, n), (rows, columns) = warps_of(instance, place), instance.waves
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


def _of_own_transfers(instance: Template, place: Place) -> Iterator[str]:
    """Where threads read what, which follows from banks and from what is contiguous."""
    schedule = schedule_of(instance, place)
    for at, (transfer, (rows, along_k)) in enumerate(zip(instance.transfers, schedule.dealt, strict=True)):
        name, matrix = f"{'ab'[at]}_block_transfer", "AB"[at]
        if not instance.enable_lds[at]:
            yield f"{name}: {matrix} goes past shared memory, as its instruction multiplies it"
            continue
        lengths = (along_k, rows, 1)
        if "ab"[at] in schedule.turned:
            yield (
                f"{name}: {rows} x {along_k} threads read {matrix} along its rows, 16 bytes at once, not "
                f"{transfer.src_scalar_per_vector} element(s), and turn their parts around in registers"
            )
            if transfer.lds_extra:
                yield f"{name}.lds_extra: a swizzle, not a row more, keeps what threads write in other banks"
        elif lengths != transfer.thread_cluster_lengths:
            yield (
                f"{name}.thread_cluster_lengths: {lengths}, not {transfer.thread_cluster_lengths}: what "
                "eight threads write at once lies in other banks"
            )


def _of_own_problem(instance: Template, place: Place) -> Iterator[str]:
    whole = schedule_of(instance, place).whole
    if whole != "mnk":
        yield (
            f"gemm_specialization: {instance.gemm_specialization} asks K for whole vectors; here what is "
            "ragged is read as wide as its rows begin"
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
