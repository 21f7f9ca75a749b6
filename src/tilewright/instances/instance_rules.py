"""Whether an instance can be at all: what its template and its kernel ask of the parameters."""

from __future__ import annotations

from collections.abc import Iterator
from math import gcd

from tilewright.arch import in_words
from tilewright.instances.template import Template
from tilewright.instances.transfers import BlockTransfer
from tilewright.instances.words import COLUMN, LDS_BYTES, ROW, Check, machines, of_matrix
from tilewright.schedule.placement_rules import near_divisor

ACCUMULATORS = {"wmma": ("f32", "f16", "i32"), "xdl": ("f32", "i32", "f64")}
"""In what dtypes products may be added."""

WIDTHS = (1, 2, 4, 8, 16)
"""Elements that one access may have."""

PREFETCHES = (1, 2)
"""Steps that a pipeline can have on their way."""


def multiple(value: int, unit: int) -> int:
    """The multiple of a unit that is nearest to a value, and no less than one unit; the larger of two.

    Example:
        >>> multiple(100, 64), multiple(10, 64), multiple(96, 64)
        (128, 64, 128)
    """
    return max((value + unit // 2) // unit, 1) * unit


def rules_of_instances(instance: Template, arch: str) -> Iterator[Check]:
    """All answers about an instance alone, and about an architecture if one is named."""
    if arch:
        yield _architecture(instance, arch)
    yield from _instruction(instance)
    yield from _tile(instance)
    yield _block(instance)
    for letter, dim, axis in (("A", "M", 0), ("B", "N", 1)):
        yield from _transfer(instance, letter, dim, axis)
    yield from _shuffle(instance)
    yield _lds(instance, arch)
    yield from _pipeline(instance)
    if instance.matrix == "wmma":
        for letter, axis in (("A", 0), ("B", 1)):
            yield _skipping(instance, letter, axis)


# ---------------------------------------------------------------- machine and instruction


def _architecture(instance: Template, arch: str) -> Check:
    known = of_matrix(instance.matrix)
    limit = f"what has {instance.matrix.upper()}: {', '.join(known)}"
    near = "" if arch in known else f'arch="{known[-1]}"'
    return Check("Arch", arch in known, arch, limit, near)


def _instruction(instance: Template) -> Iterator[Check]:
    a, b, acc = *(kind.name for kind in instance.dtypes), str(instance.acc_dtype)
    known = ACCUMULATORS[instance.matrix]
    near = "" if acc in known else f'acc_dtype="{known[0]}"'
    yield Check("AccDataType", acc in known, acc, ", ".join(known), near)

    sizes = instance.products.get((a, b, acc), ())
    (m, n, _), upper = instance.instruction, instance.matrix.capitalize()
    listed = sizes or next(iter(instance.products.values()))
    ok = (m, n) in sizes
    said = ", ".join(f"{kinds[0]} * {kinds[1]} + {kinds[2]}" for kinds in instance.products)
    changes = []
    if not sizes:
        kinds = next((known for known in instance.products if known[0] == a), next(iter(instance.products)))
        names = ("a_dtype", "b_dtype", "acc_dtype")
        given = (a, b, acc)
        changes += [
            f'{name}="{kind}"' for name, kind, old in zip(names, kinds, given, strict=True) if kind != old
        ]
    if (m, n) not in listed:
        lower = instance.matrix
        changes.append(f"m_per_{lower}={listed[0][0]} and n_per_{lower}={listed[0][1]}")
    shapes = " or ".join(f"{rows} x {columns}" for rows, columns in listed)
    value = f"{m} x {n} of {a} * {b} + {acc}"
    yield Check(f"MPer{upper} and NPer{upper}", ok, value, f"{shapes} of {said}", " and ".join(changes))


def _tile(instance: Template) -> Iterator[Check]:
    repeats = (("MPerBlock", "m_per_block", "M"), ("NPerBlock", "n_per_block", "N"))
    for axis, (name, field, dim) in enumerate(repeats):
        size, extent, count = instance.instruction[axis], instance.tile[axis], instance.repeats[axis]
        unit = size * count
        limit = f"a multiple of {size} rows" if dim == "M" else f"a multiple of {size} columns"
        ok = extent % unit == 0
        near = "" if ok else f"{field}={multiple(extent, unit)}"
        yield Check(name, ok, str(extent), f"{limit} * {count} repeats: {unit}", near)
    (a, b), depth = instance.k1s, instance.k_per_block
    units = {"K1": a} if instance.matrix == "wmma" else {"AK1": a, "BK1": b}
    deep = instance.instruction[2] or 1
    for name, unit in {**units, "the instruction": deep}.items():
        ok = depth % unit == 0
        near = "" if ok else f"k_per_block={multiple(depth, unit)}"
        yield Check(f"KPerBlock and {name}", ok, str(depth), f"a multiple of {name}: {unit}", near)


def _block(instance: Template) -> Check:
    (m, n), size = instance.waves, instance.wave_size
    ok = instance.block_size == instance.threads
    near = f"block_size={instance.threads}" if instance.threads else "fewer repeats, or a larger tile"
    limit = f"{m} x {n} waves of {size} threads: {instance.threads}"
    return Check("BlockSize", ok, str(instance.block_size), limit, "" if ok else near)


# ---------------------------------------------------------------- transfers


def _transfer(instance: Template, letter: str, dim: str, axis: int) -> Iterator[Check]:
    """A's or B's way into shared memory; past it, each thread loads K1 elements of its rows."""
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
    near = "" if ok else f"{field}.thread_cluster_lengths={fitting}"
    limit = f"divisors of the tile (K0, {dim}, K1) = {tile}"
    yield Check(f"{name}ThreadClusterLengths", ok, str(lengths), limit, near)
    yield _within_block(instance, f"{name} threads", transfer.threads, field + ".thread_cluster_lengths")
    yield _direction(instance, letter, transfer, name, field)
    asked = (
        ("SrcScalarPerVector", "src_scalar_per_vector", transfer.src_vector_dim),
        ("DstScalarPerVector_K1", "dst_scalar_per_vector_k1", 2),
    )
    for label, at, along in asked:
        yield _width(f"{name}{label}", f"{field}.{at}", getattr(transfer, at), part[along])


def _within_block(instance: Template, name: str, threads: int, field: str) -> Check:
    ok = threads <= instance.block_size
    near = "" if ok else f"{field} of {instance.block_size} threads"
    return Check(name, ok, str(threads), f"at most BlockSize: {instance.block_size}", near)


def _direction(instance: Template, letter: str, transfer: BlockTransfer, name: str, field: str) -> Check:
    """Vectors are read along what is contiguous."""
    along_k = instance.contiguous(letter) == "K"
    wanted = 2 if along_k else 1
    lies = COLUMN if (letter == "A") != along_k else ROW
    ok = transfer.src_vector_dim == wanted
    limit = f"{wanted}: {letter} is {lies}-major, contiguous along {instance.contiguous(letter)}"
    near = "" if ok else f"{field}.src_vector_dim={wanted}"
    return Check(f"{name}SrcVectorDim", ok, str(transfer.src_vector_dim), limit, near)


def _width(name: str, field: str, vector: int, run: int) -> Check:
    """Whether a run of elements of one thread is read or written in whole vectors."""
    ok = run % vector == 0 and vector in WIDTHS
    widest = max(width for width in WIDTHS if gcd(run, vector) % width == 0)
    limit = f"{in_words(WIDTHS)}, a divisor of the {run} elements of a thread"
    return Check(name, ok, str(vector), limit, "" if ok else f"{field}={widest}")


def _shuffle(instance: Template) -> Iterator[Check]:
    """The result's way out."""
    shuffle = instance.c_shuffle
    ok = instance.c_layout == ROW
    yield Check("CLayout", ok, instance.c_layout, ROW, "" if ok else f'c_layout="{ROW}"')
    for axis, dim in enumerate("MN"):
        field = f"{dim.lower()}_repeat_per_shuffle"
        count, repeats = getattr(shuffle, field), instance.repeats[axis]
        ok = repeats % count == 0
        near = "" if ok else f"c_shuffle.{field}={near_divisor(count, repeats)}"
        limit = f"a divisor of the {repeats} repeats along {dim}"
        yield Check(f"CShuffle{dim}RepeatPerShuffle", ok, str(count), limit, near)
    rows, columns = instance.c_shuffle_tile
    tile, lengths = (1, max(rows, 1), 1, max(columns, 1)), shuffle.cluster_lengths
    ok = all(extent % count == 0 for extent, count in zip(tile, lengths, strict=True))
    fitting = tuple(near_divisor(count, extent) for extent, count in zip(tile, lengths, strict=True))
    near = "" if ok else f"c_shuffle.cluster_lengths={fitting}"
    name = "CShuffleBlockTransfer"
    yield Check(f"{name}ClusterLengths", ok, str(lengths), f"divisors of the part {tile}", near)
    yield _within_block(instance, f"{name} threads", shuffle.threads, "c_shuffle.cluster_lengths")
    run = tile[3] // lengths[3] or 1
    yield _width(
        f"{name}ScalarPerVector_NPerBlock", "c_shuffle.scalar_per_vector", shuffle.scalar_per_vector, run
    )


# ---------------------------------------------------------------- shared memory, pipeline


def _lds(instance: Template, arch: str) -> Check:
    most = machines()[arch].shared_bytes if arch in machines() else LDS_BYTES
    taken = instance.lds_bytes
    (a, b), (rows, columns) = instance.lds_elems, instance.c_shuffle_tile
    value = f"{taken} bytes: of A {a} elements and of B {b}, or {rows} x {columns} of C"
    near = "" if taken <= most else "a smaller k_per_block, or fewer repeats per shuffle"
    return Check("LDS", taken <= most, value, f"at most {most} bytes", near)


def _pipeline(instance: Template) -> Iterator[Check]:
    count = instance.num_prefetch
    ok = count in PREFETCHES
    near = "" if ok else f"num_prefetch={PREFETCHES[-1]}"
    yield Check("NumPrefetch", ok, str(count), in_words(PREFETCHES), near)
    interwave = instance.loop_scheduler == "Interwave"
    ok = not interwave or all(instance.enable_lds)
    near = "" if ok else 'loop_scheduler="Default"'
    limit = "Default, or Interwave where A and B go through shared memory"
    yield Check("LoopScheduler", ok, instance.loop_scheduler, limit, near)


def _skipping(instance: Template, letter: str, axis: int) -> Check:
    """What is to go past shared memory may do so."""
    enabled, may = instance.enable_lds[axis], instance.may_skip_lds[axis]
    other, lies = ("N", ROW) if letter == "A" else ("M", COLUMN)
    dim = "M" if letter == "A" else "N"
    where = f"{other}Waves == 1, {lies}-major, K1 of 16 bytes or {dim}Repeat == 1, NumPrefetch == 1"
    ok = enabled or may
    near = "" if ok else f"{letter.lower()}_enable_lds=None"
    return Check(f"{letter}EnableLds", ok, str(enabled), f"True; False where {where}", near)
