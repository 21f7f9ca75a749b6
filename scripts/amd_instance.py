"""Writes docs/amd_instance.md: the tuned instance for gfx1151 in machine code, and its pieces.

    python scripts/amd_instance.py

The page is made of the compiler's listing, which is executed to count bank conflicts; a test holds it
current.
"""

from __future__ import annotations

import functools
import re
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from tests.instances.ablated import TURN, VARIANTS, Variant, given, measured, variant  # noqa: E402
from tests.instances.amd import ARCH, INSTANCES, SPECS, TERMS, compiled  # noqa: E402

import tilewright as tw  # noqa: E402
from tilewright.inspect.isa import IsaKind, IsaLine, IsaReport, report_of  # noqa: E402
from tilewright.inspect.isa.cost import Turn  # noqa: E402
from tilewright.ops.products import plain, scaled  # noqa: E402
from tilewright.runtime.amdgcn import find_toolchain  # noqa: E402
from tilewright.runtime.executable import Executable  # noqa: E402

PAGE = ROOT / "docs" / "amd_instance.md"

INTRODUCTION = """\
# The tuned instance, in machine code

Written by `python scripts/amd_instance.py`; the listing is that of {compiler}, other versions write others.

[Instances](instances.md) of Composable Kernel are values here, and one that was tuned for gfx1151
multiplies a matrix of fp16 by one of fp8: tiles of 128 x 256, 64 deep, 256 threads, WMMA of 16 x 16 x 16.
Its program converts all of B to fp16 first, multiplies, and applies scale and bias in a third kernel. Here
it is one kernel, `tw.scaled_mm`'s, under `instance.schedule("gfx1151", b_memory="f8e4m3")`. Both of its
specializations are in one code object, and their symbols say which:

```text
{symbols}
```

`Default` asks for whole tiles, which all lanes load or none; `MNKPadding` takes what is ragged. Tests
execute both element by element, and compare the code object byte by byte with the encodings of the
listing's instructions (`tests/instances/test_amd.py`). `tilewright instance` [writes it](instances.md).
Nothing of this has run on an AMD GPU.
"""

BESIDE = """
## Beside the template

What the template's parameters say of a thread in a turn of the main loop, and what is in the listing. The
template's own listing is not known; what does not follow from its parameters is left open.
"""

DIFFERENT = """
## Transfers, parameter by parameter

What the template's parameters say of transfers, what the kernel has in their place, and why the two differ.
Passes over the banks and clocks are those of the next table. Lengths are threads along (K0, rows, K1), and
along (1, rows, 1, columns) for the result; in an arrange order the last dimension is that of neighbours.
"""

ABLATED = """
## A's way, piece by piece

The template brings A to shared memory by three pieces together: reads of eight halves, writes of eight
halves, and a row more between two K0, so that a K0 is 1032 elements from the next. Each is left out here,
with all else as it is. Passes over the banks are for each that the bytes need, counted while the listing is
executed; clocks are by the model below.
"""

MODEL = """
## The share of the peak, by a model

Clocks of a multiprocessor for a turn of the main loop, by `src/tilewright/inspect/isa/cost.py`, which
states its assumptions: rates of the architecture's record at its highest clock, no latency, no wait for
memory, nothing before and behind the loop. These are upper bounds of what a machine could reach, not
predictions. *Alone* is a block that goes through its phases between barriers one by one; *overlapped* is
with other blocks in the gaps. On gfx1151 vector instructions take the time of matrix instructions.
The last rows are f16 by f16 in [three forms](amd.md). Three blocks of the first find room beside each
other, two of the second, one of the last: with as many, matrix instructions bound all three. The model sees
no reason to choose another form than the first, and leaves out the latencies for which there are others.
"""

LISTING = """
## The main loop

A turn of `{symbol}`, from where it begins, with what each access moves; `sA` and `sB` lie in shared memory.
Of vector and scalar instructions in between it is said how many there are; `tilewright inspect --isa` shows
all of a kernel's.
"""

SHOWN = (
    *(IsaKind.MATRIX, IsaKind.GLOBAL_LOAD, IsaKind.SHARED_LOAD, IsaKind.SHARED_STORE),
    *(IsaKind.BARRIER, IsaKind.WAIT, IsaKind.BRANCH),
)


@functools.cache
def report() -> IsaReport:
    """The machine code of the instance."""
    return report_of(compiled("Default"), lambda: given(128, 256, 128), {"alpha": 1.0})


def page() -> str:
    """The whole page."""
    symbols = "\n".join(one.symbol for one in INSTANCES.values())
    parts = [
        INTRODUCTION.format(compiler=find_toolchain(), symbols=symbols),
        BESIDE,
        *_table(("", "the template", "here"), beside(report())),
        DIFFERENT,
        *_table(("parameter", "the template", "here", "why"), differences()),
        ABLATED,
        *_table(ABLATED_COLUMNS, ablated()),
        MODEL,
        *_table(MODEL_COLUMNS, modelled()),
        LISTING.format(symbol=INSTANCES["Default"].symbol),
        "```text",
        *listing(report()),
        "```",
    ]
    return "\n".join(parts) + "\n"


def _table(head: Sequence[str], rows: Iterable[Sequence[object]]) -> Iterator[str]:
    yield f"| {' | '.join(head)} |"
    yield f"|{'---|' * len(head)}"
    for row in rows:
        yield f"| {' | '.join(map(str, row))} |"


def beside(found: IsaReport) -> Iterator[tuple[object, ...]]:
    """What follows from the template's parameters, and what is in the listing."""
    instance, main, resources = INSTANCES["Default"], found.isa.main, found.isa.resources
    counts = [x * y * z for x, y, z in instance.thread_slices]
    (m, n, depth), (rows, columns) = instance.instruction, instance.repeats
    steps = instance.k_per_block // depth
    for name, count, transfer in zip("AB", counts, instance.transfers, strict=True):
        width = transfer.src_scalar_per_vector
        own = _widths(_moving(found, name, IsaKind.GLOBAL_LOAD))
        yield f"loads of {name}", f"{count // width} of {2 * width} bytes", own
    for name, count, transfer in zip("AB", counts, instance.transfers, strict=True):
        width = transfer.dst_scalar_per_vector_k1
        own = _widths(_moving(found, name, IsaKind.SHARED_STORE))
        yield f"stores of {name} to LDS", f"{count // width} of {2 * width} bytes", own
    yield (
        "loads from LDS",
        f"{steps * (rows + columns) * 2} of 16 bytes",
        _widths(main.of(IsaKind.SHARED_LOAD)),
    )
    yield f"WMMA of {m} x {n} x {depth}", steps * rows * columns, main.mix[IsaKind.MATRIX]
    yield "vector instructions", "", main.mix[IsaKind.VECTOR]
    yield "all instructions", "", len(main.lines)
    yield "registers, and spills", "", f"{resources['registers']}, {resources['spilled_registers']}"
    yield "bytes of LDS", instance.lds_bytes, resources["shared_bytes"]
    yield "waves of a SIMD", "", min(found.isa.limits.values())
    stored = instance.accumulators // instance.c_shuffle.scalar_per_vector
    yield "stores of the result", f"{stored} of 16 bytes", _widths(found.isa.whole.of(IsaKind.GLOBAL_STORE))
    yield "kernels", "3: fp8 to fp16, product, scale and bias", 1
    yield "bytes moved for a number of B", "1 + 2 to convert, 2 to multiply", "1"
    yield "bytes moved for one of the result", "2, and 2 + 2 for scale and bias", "2"


def _moving(found: IsaReport, name: str, kind: IsaKind) -> list[IsaLine]:
    """The instructions of a kind in the main loop that move an array's numbers."""
    return [line for line in found.isa.main.of(kind) if name in found.sources[line.line].tensors]


def _widths(lines: Iterable[IsaLine]) -> str:
    """How many accesses there are of each width."""
    found: Counter[int] = Counter()
    for line in lines:
        found[line.bytes] += line.accesses
    return _counts(found)


def _counts(found: Counter[int]) -> str:
    return ", ".join(f"{count} of {size} bytes" for size, count in sorted(found.items(), reverse=True))


CLUSTER, EXTRA_ROW = (
    "A dealt as the template's cluster (4, 64, 1)",
    "B with the template's row more, not swizzled",
)
"""The variants that do what the template does and the kernel does not."""


def differences() -> Iterator[tuple[object, ...]]:
    """Each parameter of the transfers: what the template has, what is here, and why."""
    instance, whole = INSTANCES["Default"], variant("all three")
    schedule = instance.schedule(ARCH, "f8e4m3")
    a, b, c = instance.a_block_transfer, instance.b_block_transfer, instance.c_shuffle
    (rows, along_k), (columns, along_depth) = schedule.dealt
    k0 = instance.k_per_block // instance.k1
    of_a = (along_k, rows, along_k // k0)
    of_b = (k0, columns, along_depth // k0)
    passes = {
        name: [f"{one:.2f}" for one in _stores(variant(name))] for name in (CLUSTER, EXTRA_ROW, "all three")
    }
    clocks = {name: f"{variant(name).cost.alone:.0f}" for name in (CLUSTER, EXTRA_ROW, "all three")}
    now = passes["all three"]
    same, unrolled = "the same", "a thread's accesses are unrolled, and the compiler orders them"
    vectors = whole.isa.main.mix[IsaKind.VECTOR] - variant(CLUSTER).isa.main.mix[IsaKind.VECTOR]
    of_clusters = (
        f"what eight lanes write at once lies in other banks: {now[0]} passes for each store of A, "
        f"{passes[CLUSTER][0]} by the template's lengths, which take {vectors} vector instructions less "
        f"and, by the model, {clocks[CLUSTER]} clocks instead of {clocks['all three']}"
    )
    of_columns = (
        "B lies in memory in fp8, contiguous along N: a thread reads 16 neighbours along N at once, of "
        "four K, and turns them around in registers"
    )
    of_row = (
        f"a swizzle takes its place: {now[1]} passes for each store of B and {clocks['all three']} clocks, "
        f"instead of {passes[EXTRA_ROW][1]} and {clocks[EXTRA_ROW]}"
    )
    slices, slice_rows, slice_columns = _slices()
    (part_rows, part_columns), (m, n) = instance.c_shuffle_tile, (instance.m_per_block, instance.n_per_block)
    of_parts = (
        f"{m * n // (slice_rows * slice_columns)} parts of {slice_rows} x {slice_columns}, by turns in "
        f"{slices} buffers, instead of {m * n // (part_rows * part_columns)} of {part_rows} x {part_columns}"
        ": they fit into the memory that A and B have left, and have fewer barriers between them"
    )
    yield (
        *("`ABlockTransferThreadClusterLengths_K0_M_K1`", a.thread_cluster_lengths, of_a),
        of_clusters,
    )
    yield "`ABlockTransferThreadClusterArrangeOrder`", a.thread_cluster_arrange_order, (1, 0, 2), same
    yield "`ABlockTransferSrcAccessOrder`", a.src_access_order, "–", unrolled
    yield (
        *(
            "`ABlockTransferSrcVectorDim`, `SrcScalarPerVector`",
            f"{a.src_vector_dim}, {a.src_scalar_per_vector}",
        ),
        *(f"2, {max(line.bytes for line in whole.isa.main.of(IsaKind.GLOBAL_LOAD)) // 2}", same),
    )
    stored = max(line.bytes for line in whole.isa.main.of(IsaKind.SHARED_STORE)) // 2
    yield "`ABlockTransferDstScalarPerVector_K1`", a.dst_scalar_per_vector_k1, stored, same
    extra_a, extra_b = schedule.extra_rows
    yield "`ABlockLdsAddExtraM`", int(a.lds_extra), extra_a, same
    yield (
        *("`BBlockTransferThreadClusterLengths_K0_N_K1`", b.thread_cluster_lengths, of_b),
        of_columns,
    )
    yield "`BBlockTransferThreadClusterArrangeOrder`", b.thread_cluster_arrange_order, (0, 2, 1), same
    yield "`BBlockTransferSrcAccessOrder`", b.src_access_order, "–", unrolled
    yield (
        *(
            "`BBlockTransferSrcVectorDim`, `SrcScalarPerVector`",
            f"{b.src_vector_dim}, {b.src_scalar_per_vector}",
        ),
        *("1, 16", "64 loads of 2 bytes become 4 of 16 bytes"),
    )
    narrow = min(line.bytes for line in whole.isa.main.of(IsaKind.SHARED_STORE)) // 2
    yield (
        *("`BBlockTransferDstScalarPerVector_K1`", b.dst_scalar_per_vector_k1, narrow),
        "a thread has four neighbours along K",
    )
    yield (
        *("`BBlockLdsAddExtraN`", int(b.lds_extra), extra_b),
        of_row,
    )
    yield (
        *(
            "`CShuffleMRepeatPerShuffle`, `NRepeatPerShuffle`",
            f"{c.m_repeat_per_shuffle}, {c.n_repeat_per_shuffle}",
        ),
        f"{instance.repeats[0]}, {slice_columns * c.n_repeat_per_shuffle // instance.c_shuffle_tile[1]}",
        of_parts,
    )
    across = slice_columns // c.scalar_per_vector
    yield (
        *(
            "`CShuffleBlockTransferClusterLengths`",
            c.cluster_lengths,
            (1, instance.threads // across, 1, across),
        ),
        same,
    )
    (width,) = {line.bytes for line in whole.isa.whole.of(IsaKind.GLOBAL_STORE)}
    yield "`CShuffleBlockTransferScalarPerVector_NPerBlock`", c.scalar_per_vector, width // 2, same


def _stores(found: Variant) -> tuple[float, float]:
    """Passes over the banks for each that the bytes need, of the stores of A and of B."""
    stores = found.isa.main.of(IsaKind.SHARED_STORE)
    parts = ([line for line in stores if (line.bytes == B_STORED) == is_b] for is_b in (False, True))
    of_a, of_b = (found.met(*lines).factor for lines in parts)
    return of_a, of_b


def _slices() -> tuple[int, int, int]:
    """Buffers, rows and columns of the parts in which the result goes through shared memory."""
    found = re.search(r"sD: f16 1x(\d+)x(\d+)x(\d+)", compiled("Default").source)
    assert found
    buffers, rows, columns = map(int, found.groups())
    return buffers, rows, columns


ABLATED_COLUMNS = (
    *("", "loads of A", "stores to LDS", "passes: A's stores", "B's stores", "loads"),
    *("vector", "all", "registers, spills", "clocks, alone"),
)


def ablated() -> Iterator[tuple[object, ...]]:
    """Each variant: its accesses, bank conflicts, mix of instructions, and clocks by the model."""
    for name in VARIANTS:
        found = variant(name)
        main, taken = found.isa.main, found.isa.resources
        stores = main.of(IsaKind.SHARED_STORE)
        of_b = [line for line in stores if line.bytes == B_STORED]
        of_a = [line for line in stores if line.bytes != B_STORED]
        yield (
            name,
            _counts(main.widths(IsaKind.GLOBAL_LOAD) - Counter({16: B_LOADS})),
            _widths(stores),
            *(f"{found.met(*lines).factor:.2f}" for lines in (of_a, of_b, main.of(IsaKind.SHARED_LOAD))),
            *(main.mix[IsaKind.VECTOR], len(main.lines)),
            f"{taken['registers']}, {taken['spilled_registers']}",
            f"{found.cost.alone:.0f}",
        )


B_STORED, B_LOADS = 8, 4
"""Bytes of B that are written at once, and loads of B of 16 bytes: by these they are told from those of A."""

MODEL_COLUMNS = (
    *("", "tile", "matrix", "vector", "other", "LDS", "memory"),
    *("share of the peak, alone", "overlapped", "bound by"),
)


def modelled() -> Iterator[tuple[object, ...]]:
    """The instance on gfx1151, and what is chosen on gfx942 for the same product."""
    yield f"the instance, {ARCH}", _by(TURN.tile), *_shares(variant("all three"))
    made = scaled(0).bind(**TERMS).compile(**SPECS, target="hip", arch=CDNA)
    yield f"what is chosen, {CDNA}", *_modelled(made, given(128, 256, 128), TURN.bytes)
    of_rows = tw.TensorSpec(tw.f16, 2, 1, (16, 16), (16, 1), 16, False)
    of_columns = tw.TensorSpec(tw.f16, 2, 0, (16, 16), (1, 16), 16, False)
    specs, words = (of_rows, of_columns, of_rows), {"precision": "exact", "target": "hip", "arch": CDNA}
    chosen = plain(0).compile(*specs, **words).schedule
    assert chosen is not None
    for name, change in FORMS.items():
        schedule = replace(chosen, **change)
        made = plain(0).compile(*specs, **words, schedule=schedule)
        m, n, k = schedule.tile
        arrays = given(m, n, 2 * k)
        operands = {"A": arrays["A"], "B": np.asfortranarray(arrays["B"], np.float16), "D": arrays["D"]}
        yield f"f16 by f16, {CDNA}: {name}", *_modelled(made, operands, (2, 2))


FORMS: dict[str, dict[str, Any]] = {
    "what is chosen": {},
    "straight into LDS": {"staging": "cp_async", "stages": 2, "k1": (0, 0)},
    "eight waves in turns": {
        "roles": "ping-pong",
        "groups": 2,
        "stages": 2,
        "tile": (256, 256, 32),
        "epilogue": "direct",
        "interleaved": False,
    },
}
"""Of the main loop: what is other than in the schedule that is chosen."""


def _modelled(made: Executable, arrays: dict[str, Any], sizes: tuple[int, int]) -> Iterator[str]:
    """The tile of a kernel, and its clocks."""
    schedule = made.schedule
    assert schedule is not None
    warps = made.kernel.threads // schedule.atom.lanes
    turn = Turn(schedule.tile, "f16", sizes, warps, schedule.group_m, schedule.groups)
    yield from (_by(turn.tile), *_shares(measured(made, arrays, turn)))


CDNA = "gfx942"


def _shares(found: Variant) -> Iterator[str]:
    whole, cost = found.cost.whole, found.cost
    parts = {"LDS": whole.shared, "memory": cost.memory, "other instructions": whole.other}
    units = "matrix and vector instructions"
    if whole.beside:
        parts |= {"matrix instructions": whole.matrix, "vector instructions": whole.vector}
    else:
        parts[units] = whole.matrix + whole.vector
    for clocks in (whole.matrix, whole.vector, whole.other, whole.shared, cost.memory):
        yield f"{clocks:.0f}"
    for share in cost.shares:
        yield f"{share:.0%}"
    yield max(parts, key=lambda name: parts[name])


def _by(tile: tuple[int, ...]) -> str:
    return " x ".join(map(str, tile))


def listing(found: IsaReport) -> Iterator[str]:
    """The main loop: accesses, products, waits and barriers, and how much else stands between them."""
    between: Counter[IsaKind] = Counter()
    for line, label, (_, text, passes, arrays, says, _) in found.rows():
        if label:
            yield from _counted(between)
            yield f"{label}:"
        if line.kind not in SHOWN:
            between[line.kind] += 1
            continue
        yield from _counted(between)
        told = [f"{passes} passes" if passes else "", says or arrays] if line.bytes else []
        note = "; ".join(part for part in told if part)
        yield f"  {' '.join(text.split()):<58}{note}".rstrip()
    yield from _counted(between)


def _counted(between: Counter[IsaKind]) -> Iterator[str]:
    """What stood between two instructions that are shown."""
    if between:
        told = ", ".join(f"{count} {kind.value}" for kind, count in between.items())
        yield f"      ... {told}"
        between.clear()


def main() -> int:
    PAGE.write_text(page())
    print(f"wrote {PAGE.relative_to(ROOT)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
