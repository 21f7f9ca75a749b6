"""The CPU target's passes, and freestanding C++ text from a lowered kernel."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

from tilewright.arch import Arch
from tilewright.ir.kernel import Kernel, ScalarParam, SizeParam
from tilewright.passes.common import INVERSES, PACKED
from tilewright.passes.pipeline import Pass, Passed, run_passes
from tilewright.targets.cpu.conversions import STORAGE, TYPEDEFS
from tilewright.targets.cpu.copies import pair
from tilewright.targets.cpu.emitter import SELF, CpuEmitter
from tilewright.targets.cpu.feed import feed_micro_kernels
from tilewright.targets.cpu.legality import waits
from tilewright.targets.cpu.live import needed, reach, read_of_copies
from tilewright.targets.cpu.multiply import fuse, gather
from tilewright.targets.cpu.prelude import MACROS, SNIPPETS, prelude
from tilewright.targets.cpu.sequential import drop_threads
from tilewright.targets.cpu.spelling import CPU_RULES
from tilewright.targets.rules import EmittedText
from tilewright.targets.statements import Code, Printer, code, named, tidy, used
from tilewright.targets.target import CPU

# ---------------------------------------------------------------- passes, in order


PASSES: tuple[Pass, ...] = (
    PACKED,
    Pass(
        "one-thread",
        "One thread does the work of the block; accumulators become micro-tiles; synchronisation is removed.",
        drop_threads,
    ),
    Pass(
        "operands",
        "Operands of matrix products are stored in shared memory, widened, as rows of A and panels of B.",
        lambda kernel, arch: feed_micro_kernels(kernel),
    ),
    INVERSES,
)
"""Emission then fuses neighbouring elementwise operations, and skips work outside of the tensors."""


def lower(kernel: Kernel, arch: Arch | str) -> Passed:
    """Return the lowered kernel, and a note for each choice."""
    return run_passes(kernel, CPU.architecture(arch), PASSES)


# ---------------------------------------------------------------- text


EXPORT = 'extern "C" __attribute__((visibility("default")))'


def emit(kernel: Kernel, arch: Arch | str) -> EmittedText:
    """Return the C++ text of a kernel: one function that takes blocks from a counter; no headers, no library.

    Args:
        kernel: the traced kernel; it must break no rule.
        arch: the architecture, or its name.

    Returns:
        The text, with the lowered kernel.
    """
    chosen = CPU.architecture(arch)
    lowered, notes = lower(kernel, chosen)
    extents = needed(lowered)
    fused = replace(lowered, body=pair(fuse(gather(lowered, extents)), lowered))
    emitter = CpuEmitter(fused, CPU_RULES, chosen, extents, read_of_copies(lowered, extents), reach(lowered))
    entry = emitter.identifier(kernel.name)
    arguments, block = emitter.names.unique(f"{entry}_arguments"), emitter.names.unique(f"{entry}_block")
    passed = list(_passed(emitter))
    _start(emitter, passed)
    emitter.block(fused.body)
    body = tidy(emitter.body, ())
    functions = [text.replace(SELF, name) for name, text in emitter.functions.items()]
    emitter.call(*sorted(used(body) & SNIPPETS.texts.keys()))
    values = [p.value for p in kernel.params if not isinstance(p, SizeParam)]
    types = sorted({v.dtype.name for v in (*values, *emitter.scratch)} & TYPEDEFS.keys())
    board = enter = leave = given = stop = ""
    if waits(fused):
        board, given = ", long long* board", ", next_block"
        stop = " || __atomic_load_n(next_block + 1, __ATOMIC_RELAXED)"
        enter = "  __atomic_fetch_add(next_block + 2, 1, __ATOMIC_RELAXED);\n"
        leave = "  __atomic_fetch_sub(next_block + 2, 1, __ATOMIC_RELAXED);\n"
    pieces = [
        f"// {kernel.name} for {chosen.name}\n" + "".join(f"// - {note}\n" for note in notes) + "\n" + MACROS,
        prelude((*types, *emitter.calls)),
        "\n".join([f"struct {arguments} {{", *(f"  {kind} {name};" for name, kind, _ in passed), "};"]),
        *functions,
        "\n".join(
            [
                "// One block.",
                f"static void {block}(const {arguments}& given, long long block, char* scratch{board}) {{",
                *Printer().print(body),
                "}",
            ]
        ),
        f"""\
{EXPORT}
void {entry}(const void* arguments, long long* next_block, void* scratch, long long blocks) {{
{enter}  for (;;) {{
    const long long block = __atomic_fetch_add(next_block, 1, __ATOMIC_RELAXED);
    if (block >= blocks{stop}) break;
    {block}(*(const {arguments}*)arguments, block, (char*)scratch{given});
  }}
{leave}}}""",
    ]
    text = "\n\n".join(piece.rstrip("\n") for piece in pieces if piece) + "\n"
    return EmittedText(text, entry, lowered, emitter.scratch_bytes, notes, emitter.accesses)


def _passed(emitter: CpuEmitter) -> Iterator[tuple[Code, str, str]]:
    """Yield the name of each parameter, its type in the packed arguments, and its type in a block."""
    for param in emitter.kernel.params:
        if isinstance(param, SizeParam):
            # In a block sizes have 64 bits, so that products of them do not overflow.
            yield emitter.name(param.sym), "long long" if param.bits == 64 else "int", "const Index"
            continue
        kind, name = STORAGE[param.value.dtype.name], emitter.name(param.value)
        if isinstance(param, ScalarParam):
            yield name, kind, f"const {kind}"
        else:
            written = any(param.value in (v.buffer for v in op.written) for op in emitter.kernel.walk())
            pointer = f"{'' if written else 'const '}{kind}*"
            yield name, pointer, f"{pointer} const"


def _start(emitter: CpuEmitter, passed: Iterable[tuple[Code, str, str]]) -> None:
    """Declare arguments, block indices, and the pointers to tensors and fragments in scratch memory."""
    kernel = emitter.kernel
    for name, _, kind in passed:
        emitter.declare(named(kind), name, code("given.{}", name), optional=True)
    rest = named("block")
    for at, axis in enumerate(kernel.grid):
        extent = emitter.spell(axis.extent, True)
        last = at == len(kernel.grid) - 1
        index = rest if last else code("{} % {}", rest, extent)
        emitter.constant("Index", emitter.name(axis.sym), index)
        rest = code("{} / {}", rest, extent)
    for member in kernel.cluster:
        along = emitter.name(kernel.grid[member.axis].sym)
        emitter.constant("Index", emitter.name(member.sym), code("{} % {}", along, member.extent))
    for value, offset in emitter.scratch.items():
        kind = STORAGE[value.dtype.name]
        start = code(f"({kind}*)({{}} + {offset})", named("scratch"))
        emitter.declare(named(f"{kind}* const"), emitter.name(value), start, optional=True)
