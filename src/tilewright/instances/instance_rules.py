"""The rules of an instance alone: requirements of its template and its kernel."""

from __future__ import annotations

from collections.abc import Iterator
from math import gcd

from tilewright.arch import in_words
from tilewright.instances.template import BlockTransfer, Template
from tilewright.instances.words import COLUMN, FEATURES, LDS_BYTES, ROW, Check, checked, machines
from tilewright.schedule.machine_rules import near_divisor

ACCUMULATORS = {"wmma": ("f32", "f16", "i32"), "xdl": ("f32", "i32", "f64")}
"""Legal dtypes of accumulators."""

WIDTHS = (1, 2, 4, 8, 16)
"""Legal numbers of elements of one access."""

PREFETCHES = (1, 2)
"""Legal numbers of prefetched steps."""


def multiple(value: int, unit: int) -> int:
    """Return the nearest positive multiple of a unit; the larger one of two equally near.

    Example:
        >>> multiple(100, 64), multiple(10, 64), multiple(96, 64)
        (128, 64, 128)
    """
    return max((value + unit // 2) // unit, 1) * unit


def rules_of_instances(instance: Template, arch: str) -> Iterator[Check]:
    """Yield the checks of an instance, and of an architecture if one is named."""
    if arch:
        known = [name for name, one in machines().items() if FEATURES[instance.matrix] in one.features]
        limit = f"what has {instance.matrix.upper()}: {', '.join(known)}"
        yield checked("Arch", arch in known, arch, limit, f'arch="{known[-1]}"')
    yield from _instruction(instance)
    yield from _tile(instance)
    (waves_m, waves_n), size, threads = instance.waves, instance.wave_size, instance.threads
    near = f"block_size={threads}" if threads else "fewer repeats, or a larger tile"
    limit = f"{waves_m} x {waves_n} waves of {size} threads: {threads}"
    yield checked("BlockSize", instance.block_size == threads, instance.block_size, limit, near)
    for letter, dim, axis in (("A", "M", 0), ("B", "N", 1)):
        yield from _transfer(instance, letter, dim, axis)
    yield from _shuffle(instance)

    most = machines()[arch].shared_bytes if arch in machines() else LDS_BYTES
    (a, b), (rows, columns) = instance.lds_elems, instance.c_shuffle_tile
    value = f"{instance.lds_bytes} bytes: of A {a} elements and of B {b}, or {rows} x {columns} of C"
    near = "a smaller k_per_block, or fewer repeats per shuffle"
    yield checked("LDS", instance.lds_bytes <= most, value, f"at most {most} bytes", near)
    count, near = instance.num_prefetch, f"num_prefetch={PREFETCHES[-1]}"
    yield checked("NumPrefetch", count in PREFETCHES, count, in_words(PREFETCHES), near)
    ok = instance.loop_scheduler != "Interwave" or all(instance.enable_lds)
    limit = "Default, or Interwave where A and B go through shared memory"
    yield checked("LoopScheduler", ok, instance.loop_scheduler, limit, 'loop_scheduler="Default"')
    if instance.matrix != "wmma":
        return
    for axis, (letter, dim, other, lies) in enumerate((("A", "M", "N", ROW), ("B", "N", "M", COLUMN))):
        enabled, may_skip = instance.enable_lds[axis], instance.may_skip_lds[axis]
        where = f"{other}Waves == 1, {lies}-major, K1 of 16 bytes or {dim}Repeat == 1, NumPrefetch == 1"
        near = f"{letter.lower()}_enable_lds=None"
        yield checked(f"{letter}EnableLds", enabled or may_skip, enabled, f"True; False where {where}", near)


# ---------------------------------------------------------------- instruction and tile


def _instruction(instance: Template) -> Iterator[Check]:
    a, b, acc = *(kind.name for kind in instance.dtypes), str(instance.acc_dtype)
    known = ACCUMULATORS[instance.matrix]
    yield checked("AccDataType", acc in known, acc, ", ".join(known), f'acc_dtype="{known[0]}"')

    sizes = instance.products.get((a, b, acc), ())
    (m, n, _), upper = instance.instruction, instance.matrix.capitalize()
    listed = sizes or next(iter(instance.products.values()))
    said = ", ".join(f"{kinds[0]} * {kinds[1]} + {kinds[2]}" for kinds in instance.products)
    changes = []
    if not sizes:
        kinds = next((known for known in instance.products if known[0] == a), next(iter(instance.products)))
        pairs = zip(("a_dtype", "b_dtype", "acc_dtype"), kinds, (a, b, acc), strict=True)
        changes += [f'{name}="{kind}"' for name, kind, old in pairs if kind != old]
    if (m, n) not in listed:
        lower = instance.matrix
        changes.append(f"m_per_{lower}={listed[0][0]} and n_per_{lower}={listed[0][1]}")
    shapes = " or ".join(f"{rows} x {columns}" for rows, columns in listed)
    value = f"{m} x {n} of {a} * {b} + {acc}"
    name, near = f"MPer{upper} and NPer{upper}", " and ".join(changes)
    yield checked(name, (m, n) in sizes, value, f"{shapes} of {said}", near)


def _tile(instance: Template) -> Iterator[Check]:
    repeats = (("MPerBlock", "m_per_block", "M"), ("NPerBlock", "n_per_block", "N"))
    for axis, (name, field, dim) in enumerate(repeats):
        size, extent, count = instance.instruction[axis], instance.tile[axis], instance.repeats[axis]
        unit = size * count
        limit = f"a multiple of {size} rows" if dim == "M" else f"a multiple of {size} columns"
        limit = f"{limit} * {count} repeats: {unit}"
        yield checked(name, extent % unit == 0, extent, limit, f"{field}={multiple(extent, unit)}")
    (a, b), depth = instance.k1s, instance.k_per_block
    units = {"K1": a} if instance.matrix == "wmma" else {"AK1": a, "BK1": b}
    deep = instance.instruction[2] or 1
    for name, unit in {**units, "the instruction": deep}.items():
        limit, near = f"a multiple of {name}: {unit}", f"k_per_block={multiple(depth, unit)}"
        yield checked(f"KPerBlock and {name}", depth % unit == 0, depth, limit, near)


# ---------------------------------------------------------------- transfers


def _transfer(instance: Template, letter: str, dim: str, axis: int) -> Iterator[Check]:
    """Yield the checks of the copy of A or B to shared memory or registers, K1 elements at a time."""
    transfer, tile, part = instance.transfers[axis], instance.tiles[axis], instance.thread_slices[axis]
    field, name = f"{letter.lower()}_block_transfer", f"{letter}BlockTransfer"
    if not instance.enable_lds[axis]:
        yield _direction(instance, letter, transfer, name, field)
        vector = transfer.src_scalar_per_vector
        yield _width(f"{name}SrcScalarPerVector", f"{field}.src_scalar_per_vector", vector, tile[2])
        return
    lengths = transfer.thread_cluster_lengths
    ok = all(extent % count == 0 for extent, count in zip(tile, lengths, strict=True) if extent)
    fitting = tuple(near_divisor(count, max(extent, 1)) for extent, count in zip(tile, lengths, strict=True))
    near = f"{field}.thread_cluster_lengths={fitting}"
    limit = f"divisors of the tile (K0, {dim}, K1) = {tile}"
    yield checked(f"{name}ThreadClusterLengths", ok, lengths, limit, near)
    yield _within_block(instance, f"{name} threads", transfer.threads, field + ".thread_cluster_lengths")
    yield _direction(instance, letter, transfer, name, field)
    asked = (
        ("SrcScalarPerVector", "src_scalar_per_vector", transfer.src_vector_dim),
        ("DstScalarPerVector_K1", "dst_scalar_per_vector_k1", 2),
    )
    for label, at, along in asked:
        yield _width(f"{name}{label}", f"{field}.{at}", getattr(transfer, at), part[along])


def _within_block(instance: Template, name: str, threads: int, field: str) -> Check:
    most = instance.block_size
    return checked(name, threads <= most, threads, f"at most BlockSize: {most}", f"{field} of {most} threads")


def _direction(instance: Template, letter: str, transfer: BlockTransfer, name: str, field: str) -> Check:
    """Check that vectors are read along the contiguous dimension."""
    along_k = instance.contiguous(letter) == "K"
    wanted = 2 if along_k else 1
    lies = COLUMN if (letter == "A") != along_k else ROW
    given, near = transfer.src_vector_dim, f"{field}.src_vector_dim={wanted}"
    limit = f"{wanted}: {letter} is {lies}-major, contiguous along {instance.contiguous(letter)}"
    return checked(f"{name}SrcVectorDim", given == wanted, given, limit, near)


def _width(name: str, field: str, vector: int, run: int) -> Check:
    """Check that a run of elements of one thread is read or written in whole vectors."""
    ok = run % vector == 0 and vector in WIDTHS
    widest = max(width for width in WIDTHS if gcd(run, vector) % width == 0)
    limit = f"{in_words(WIDTHS)}, a divisor of the {run} elements of a thread"
    return checked(name, ok, vector, limit, f"{field}={widest}")


def _shuffle(instance: Template) -> Iterator[Check]:
    """Yield the checks of the store of the result."""
    shuffle = instance.c_shuffle
    yield checked("CLayout", instance.c_layout == ROW, instance.c_layout, ROW, f'c_layout="{ROW}"')
    for axis, dim in enumerate("MN"):
        field = f"{dim.lower()}_repeat_per_shuffle"
        count, repeats = getattr(shuffle, field), instance.repeats[axis]
        near = f"c_shuffle.{field}={near_divisor(count, repeats)}"
        limit = f"a divisor of the {repeats} repeats along {dim}"
        yield checked(f"CShuffle{dim}RepeatPerShuffle", repeats % count == 0, count, limit, near)
    rows, columns = instance.c_shuffle_tile
    tile, lengths = (1, max(rows, 1), 1, max(columns, 1)), shuffle.cluster_lengths
    ok = all(extent % count == 0 for extent, count in zip(tile, lengths, strict=True))
    fitting = tuple(near_divisor(count, extent) for extent, count in zip(tile, lengths, strict=True))
    name, near = "CShuffleBlockTransfer", f"c_shuffle.cluster_lengths={fitting}"
    yield checked(f"{name}ClusterLengths", ok, lengths, f"divisors of the part {tile}", near)
    yield _within_block(instance, f"{name} threads", shuffle.threads, "c_shuffle.cluster_lengths")
    run = tile[3] // lengths[3] or 1
    vector = shuffle.scalar_per_vector
    yield _width(f"{name}ScalarPerVector_NPerBlock", "c_shuffle.scalar_per_vector", vector, run)
