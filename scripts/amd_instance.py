"""Write docs/amd_instance.md: the machine code of the tuned instance for gfx1151, piece by piece.

    python scripts/amd_instance.py

The script compiles the instance, and executes the compiler's listing to count bank conflicts. A test fails
if the page is out of date.
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
from tests.instances.cost import Turn  # noqa: E402

import tilewright as tw  # noqa: E402
from tilewright.inspect.isa import IsaKind, IsaLine, IsaReport, report_of  # noqa: E402
from tilewright.ops.products import plain, scaled  # noqa: E402
from tilewright.runtime.amdgcn import find_toolchain  # noqa: E402
from tilewright.runtime.executable import Executable  # noqa: E402

PAGE = ROOT / "docs" / "amd_instance.md"

INTRODUCTION = """\
# The tuned instance, in machine code

`python scripts/amd_instance.py` writes this page. The listing is that of {compiler}; other versions write
other listings.

[Instances](instances.md) of Composable Kernel are Python values here. This one was tuned for gfx1151 and
multiplies a matrix in fp16 by one in fp8: tiles of 128 x 256, 64 deep, 256 threads, WMMA of 16 x 16 x 16.
Its own program runs three kernels: the first converts all of B to fp16, the second multiplies, and the third
applies scale and bias. Here `tw.scaled_mm` does all of it in one kernel, with the schedule
`instance.schedule("gfx1151", b_memory="f8e4m3")`. One code object contains both specializations, with these
symbols:

```text
{symbols}
```

`Default` requires whole tiles, so that either all lanes load or none does. `MNKPadding` takes ragged extents.
Tests execute both listings, compare every element, and compare the code object byte by byte with the
encodings of the listing's instructions (`tests/instances/test_amd.py`). `tilewright instance`
[writes the code object](instances.md). None of this has run on an AMD GPU.
"""

BESIDE = """
## Compared with the template

The table compares one iteration of the main loop for one thread: what the template's parameters imply, and
what our listing contains. We do not have the template's own listing, so cells that do not follow from its
parameters are empty.
"""

DIFFERENT = """
## Transfers, parameter by parameter

The table compares the template's parameters for transfers with our kernel, and says why they differ.
Passes over the banks and clocks are those of the next table. Cluster lengths are threads along (K0, rows,
K1), and along (1, rows, 1, columns) for the result. Neighbouring threads differ in the last dimension of an
arrange order.
"""

ABLATED = """
## The copy of A, piece by piece

The template copies A to shared memory with three techniques: it reads eight halves at once, it writes eight
halves at once, and it inserts an extra row between two K0, so that consecutive K0 are 1032 elements apart.
Each row of the table changes one of them, or another detail, and nothing else. Passes over the banks are
relative to the minimum for the number of bytes, and are counted while the listing is executed. Clocks are
those of the model below.
"""

MODEL = """
## The share of the peak, by a model

The table has the clocks of a multiprocessor for one iteration of the main loop. The model is
`tests/instances/cost.py`, which states its assumptions: rates of the architecture's record at its
highest clock, no latency, no wait for memory, nothing before or after the loop. Its shares of the peak are
upper bounds, not predictions. *Alone* means one block, which goes through its phases between barriers one
after the other. *Overlapped* means that other blocks fill the gaps. On gfx1151 matrix and vector
instructions share one pipeline, so their times add up.

The last rows are products of f16 by f16 in [three forms](amd.md). A multiprocessor has room for three blocks
of the first form, two of the second, and one of the last. With that many blocks, matrix instructions limit
all three. The model therefore gives no reason to choose another form than the first. The other forms exist to
hide latencies, which the model leaves out.
"""

LISTING = """
## The main loop

This is one iteration of `{symbol}`, with a note for what each access moves; `sA` and `sB` are in shared
memory. Of other vector and scalar instructions only the number is shown. `tilewright inspect --isa` shows
every instruction of a kernel.
"""

SHOWN = (
    *(IsaKind.MATRIX, IsaKind.GLOBAL_LOAD, IsaKind.SHARED_LOAD, IsaKind.SHARED_STORE),
    *(IsaKind.BARRIER, IsaKind.WAIT, IsaKind.BRANCH),
)


@functools.cache
def report() -> IsaReport:
    """Return the machine code of the instance."""
    return report_of(compiled("Default"), lambda: given(128, 256, 128), {"alpha": 1.0})


def page() -> str:
    """Return the page."""
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
    """Yield rows: a quantity, its value by the template's parameters, its value in the listing."""
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
    """Return the main loop's instructions of a kind that move elements of an array."""
    return [line for line in found.isa.main.of(kind) if name in found.sources[line.line].tensors]


def _widths(lines: Iterable[IsaLine]) -> str:
    """Count the accesses of each width."""
    found: Counter[int] = Counter()
    for line in lines:
        found[line.bytes] += line.accesses
    return _counts(found)


def _counts(found: Counter[int]) -> str:
    return ", ".join(f"{count} of {size} bytes" for size, count in sorted(found.items(), reverse=True))


CLUSTER, EXTRA_ROW = (
    "A distributed as by the template's cluster (4, 64, 1)",
    "B with the template's extra row, not swizzled",
)
"""Variants with a detail of the template that our kernel changes."""


def differences() -> Iterator[tuple[object, ...]]:
    """Yield each parameter of the transfers: the template's value, ours, and the reason."""
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
    same, unrolled = "the same", "a thread's accesses are unrolled; the compiler orders them"
    vectors = whole.isa.main.mix[IsaKind.VECTOR] - variant(CLUSTER).isa.main.mix[IsaKind.VECTOR]
    of_clusters = (
        f"eight lanes that write at once use different banks: {now[0]} passes for each store of A, instead "
        f"of {passes[CLUSTER][0]} with the template's lengths. Those need {vectors} vector instructions "
        f"fewer and, by the model, {clocks[CLUSTER]} clocks instead of {clocks['all three']}"
    )
    of_columns = (
        "B is fp8 in memory, contiguous along N: for each of four K a thread reads 16 neighbours along N at "
        "once, and it transposes them in registers"
    )
    of_row = (
        f"a swizzle replaces the extra row: {now[1]} passes for each store of B and {clocks['all three']} "
        f"clocks, instead of {passes[EXTRA_ROW][1]} and {clocks[EXTRA_ROW]}"
    )
    slices, slice_rows, slice_columns = _slices()
    (part_rows, part_columns), (m, n) = instance.c_shuffle_tile, (instance.m_per_block, instance.n_per_block)
    of_parts = (
        f"{m * n // (slice_rows * slice_columns)} parts of {slice_rows} x {slice_columns}, alternately in "
        f"{slices} buffers, instead of {m * n // (part_rows * part_columns)} of {part_rows} x {part_columns}"
        ": they fit into the shared memory of A and B, and need fewer barriers"
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
    """Return the passes over the banks, relative to the minimum, of the stores of A and of B."""
    stores = found.isa.main.of(IsaKind.SHARED_STORE)
    parts = ([line for line in stores if (line.bytes == B_STORED) == is_b] for is_b in (False, True))
    of_a, of_b = (found.met(*lines).factor for lines in parts)
    return of_a, of_b


def _slices() -> tuple[int, int, int]:
    """Return buffers, rows and columns of the parts in which the result passes through shared memory."""
    found = re.search(r"sD: f16 1x(\d+)x(\d+)x(\d+)", compiled("Default").source)
    assert found
    buffers, rows, columns = map(int, found.groups())
    return buffers, rows, columns


ABLATED_COLUMNS = (
    *("", "loads of A", "stores to LDS", "passes: A's stores", "B's stores", "loads"),
    *("vector", "all", "registers, spills", "clocks, alone"),
)


def ablated() -> Iterator[tuple[object, ...]]:
    """Yield each variant's accesses, bank conflicts, instruction mix, and clocks by the model."""
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
"""Bytes of one store of B, and number of 16-byte loads of B; they distinguish B's accesses from A's."""

MODEL_COLUMNS = (
    *("", "tile", "matrix", "vector", "other", "LDS", "memory"),
    *("share of the peak, alone", "overlapped", "bound by"),
)


def modelled() -> Iterator[tuple[object, ...]]:
    """Yield the instance on gfx1151, then kernels for gfx942: the chosen one and other forms."""
    yield f"the instance, {ARCH}", _by(TURN.tile), *_shares(variant("all three"))
    made = scaled(0).bind(**TERMS).compile(**SPECS, target="hip", arch=CDNA)
    yield f"the chosen schedule, {CDNA}", *_modelled(made, given(128, 256, 128), TURN.bytes)
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
    "the chosen schedule": {},
    "loads directly into LDS": {"staging": "cp_async", "stages": 2, "k1": (0, 0)},
    "eight alternating waves": {
        "roles": "alternating",
        "groups": 2,
        "stages": 2,
        "tile": (256, 256, 32),
        "epilogue": "direct",
        "interleaved": False,
    },
}
"""Forms of the main loop, as changes to the schedule that the library chooses."""


def _modelled(made: Executable, arrays: dict[str, Any], sizes: tuple[int, int]) -> Iterator[str]:
    """Yield a kernel's tile, and its clocks."""
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
    if whole.concurrent:
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
    """Yield the main loop's accesses, products, waits and barriers; other instructions are only counted."""
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
    """Yield the counts of the instructions between two that are shown."""
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
