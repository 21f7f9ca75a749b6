"""From a lowered kernel to freestanding C++ text."""

from __future__ import annotations

from dataclasses import replace

from tilewright.arch import Arch
from tilewright.ir.kernel import Kernel, ScalarParam, SizeParam
from tilewright.ir.types import Value
from tilewright.targets.cpu.conversions import STORAGE, TYPEDEFS
from tilewright.targets.cpu.emitter import SELF, CpuEmitter
from tilewright.targets.cpu.fuse import fuse
from tilewright.targets.cpu.live import needed
from tilewright.targets.cpu.lowering import lower
from tilewright.targets.cpu.prelude import INTEGERS, MACROS, prelude
from tilewright.targets.cpu.spelling import CPU_RULES
from tilewright.targets.listing import Listing
from tilewright.targets.target import CPU

EXPORT = 'extern "C" __attribute__((visibility("default")))'


def emit(kernel: Kernel, arch: Arch | str) -> Listing:
    """The C++ text of a kernel: no headers, no library, one function that draws blocks from a counter.

    Args:
        kernel: the traced kernel; it must break no rule.
        arch: the architecture, or its name.

    Returns:
        The text, with the lowered kernel that it spells.
    """
    chosen = CPU.architecture(arch)
    lowered, notes = lower(kernel, chosen)
    fused = replace(lowered, body=fuse(lowered.body))
    emitter = CpuEmitter(fused, CPU_RULES, chosen, needed(lowered))
    entry = emitter.identifier(kernel.name)
    arguments, block = emitter.names.unique(f"{entry}_arguments"), emitter.names.unique(f"{entry}_block")
    emitter.block(fused.body)
    body = [*_start(emitter), *emitter.lines]
    functions = [text.replace(SELF, name) for name, text in emitter.functions.items()]
    spelled = "\n".join((*functions, *body))
    emitter.call(*(name for name in INTEGERS if f"{name}(" in spelled))
    pieces = [
        f"// {kernel.name} for {chosen.name}\n" + "".join(f"// - {note}\n" for note in notes) + "\n" + MACROS,
        prelude((*_storage_types(emitter), *emitter.calls)),
        _arguments(emitter, arguments),
        *functions,
        "\n".join(
            [
                "// One block.",
                f"static void {block}(const {arguments}& given, long long block, char* scratch) {{",
                *body,
                "}",
            ]
        ),
        f"""\
{EXPORT}
void {entry}(const void* arguments, long long* next_block, void* scratch, long long blocks) {{
  for (;;) {{
    const long long block = __atomic_fetch_add(next_block, 1, __ATOMIC_RELAXED);
    if (block >= blocks) break;
    {block}(*(const {arguments}*)arguments, block, (char*)scratch);
  }}
}}""",
    ]
    text = "\n\n".join(piece.rstrip("\n") for piece in pieces if piece) + "\n"
    return Listing(text, entry, lowered, emitter.scratch_bytes, notes, emitter.accesses)


def _storage_types(emitter: CpuEmitter) -> list[str]:
    """The typedefs of the dtypes that the kernel names."""
    kernel = emitter.kernel
    values = [p.value for p in kernel.params if not isinstance(p, SizeParam)]
    names = {v.dtype.name for v in (*values, *emitter.scratch)}
    return sorted(names & TYPEDEFS.keys())


def _arguments(emitter: CpuEmitter, name: str) -> str:
    """The structure of the packed arguments."""
    lines = [f"struct {name} {{"]
    for param in emitter.kernel.params:
        if isinstance(param, SizeParam):
            lines.append(f"  {'long long' if param.bits == 64 else 'int'} {emitter.name(param.sym)};")
        elif isinstance(param, ScalarParam):
            lines.append(f"  {STORAGE[param.value.dtype.name]} {emitter.name(param.value)};")
        else:
            lines.append(f"  {_pointer(emitter, param.value)} {emitter.name(param.value)};")
    return "\n".join([*lines, "};"])


def _pointer(emitter: CpuEmitter, value: Value) -> str:
    written = any(value in (v.buffer for v in op.written) for op in emitter.kernel.walk())
    return f"{'' if written else 'const '}{STORAGE[value.dtype.name]}*"


def _start(emitter: CpuEmitter) -> list[str]:
    """Arguments, block indices, and where tensors and fragments lie in the scratch memory."""
    kernel = emitter.kernel
    lines = []
    for param in kernel.params:
        if isinstance(param, SizeParam):
            # Sizes are wide here, so that no product with them overflows.
            name = emitter.name(param.sym)
            lines.append(f"  const Index {name} = given.{name};")
        elif isinstance(param, ScalarParam):
            name = emitter.name(param.value)
            lines.append(f"  const {STORAGE[param.value.dtype.name]} {name} = given.{name};")
        else:
            name = emitter.name(param.value)
            lines.append(f"  {_pointer(emitter, param.value)} const {name} = given.{name};")
    rest = "block"
    for at, axis in enumerate(kernel.grid):
        name, extent = emitter.name(axis.sym), emitter.spell(axis.extent, True)
        last = at == len(kernel.grid) - 1
        lines.append(f"  const Index {name} = {rest if last else f'{rest} % {extent}'};")
        rest = f"{rest} / {extent}"
    for member in kernel.cluster:
        along = emitter.name(kernel.grid[member.axis].sym)
        lines.append(f"  const Index {emitter.name(member.sym)} = {along} % {member.extent};")
    for value, offset in emitter.scratch.items():
        kind = STORAGE[value.dtype.name]
        lines.append(f"  {kind}* const {emitter.name(value)} = ({kind}*)(scratch + {offset});")
    return lines
