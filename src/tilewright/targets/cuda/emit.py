"""From a lowered kernel to CUDA C++ text."""

from __future__ import annotations

import math

from tilewright.arch import Arch
from tilewright.ir.async_ops import Role
from tilewright.ir.kernel import Kernel, ScalarParam, SizeParam
from tilewright.ir.ops import Mma, Shared
from tilewright.ir.passed import passed_params
from tilewright.targets.atoms import multiplied_without_tensor_cores
from tilewright.targets.cuda.lowering import lower
from tilewright.targets.cuda.prelude import DIALECT, prelude
from tilewright.targets.cuda.spelling import CUDA_RULES, SHARED_MEMORY
from tilewright.targets.listing import Listing
from tilewright.targets.simt.emitter import THREAD, SimtEmitter
from tilewright.targets.statements import COLUMNS, Code, Printer, call, code, named, names_in, used
from tilewright.targets.target import CUDA
from tilewright.targets.tidy import tidy


def emit(kernel: Kernel, arch: Arch | str) -> Listing:
    """The CUDA C++ text of a kernel, which includes no header.

    Args:
        kernel: the traced kernel; it must break no rule.
        arch: the architecture, or its name.

    Returns:
        The text, with the lowered kernel that it spells.
    """
    chosen = CUDA.architecture(arch)
    lowered, notes = lower(kernel, chosen)
    emitter = SimtEmitter(lowered, CUDA_RULES, DIALECT, chosen.features)
    entry = emitter.identifier(kernel.name)
    _start(emitter)
    emitter.block(lowered.body)
    body = tidy(emitter.body, {THREAD})
    head, params = _head(emitter, entry)
    pieces = prelude(used(body) | names_in(params), emitter.functions)
    chosen_for = [f"// - {note}" for note in notes]
    lines = [*(f"{piece}\n" for piece in pieces), *chosen_for, *head, *Printer().print(body), "}"]
    text = "\n".join(lines) + "\n"
    return Listing(text, entry, lowered, emitter.shared_bytes, (*notes, *_slow_multiplies(kernel, chosen)))


def _slow_multiplies(kernel: Kernel, arch: Arch) -> list[str]:
    """What is multiplied without the tensor cores that the architecture has for it."""
    atoms = dict.fromkeys(op.mma.atom for op in kernel.walk() if isinstance(op, Mma))
    said = (multiplied_without_tensor_cores(atom, arch.name, arch.features) for atom in atoms)
    return list(dict.fromkeys(filter(None, said)))


def _head(emitter: SimtEmitter, entry: str) -> tuple[list[str], list[Code]]:
    """The signature, up to the opening brace, and its parameters."""
    kernel = emitter.kernel
    alone = any(isinstance(op, Role) and op.registers is not None for op in kernel.walk())
    bounds = f"__launch_bounds__({kernel.threads}{', 1' if alone else ''})"
    if kernel.cluster:
        shape = [1, 1, 1]
        for member in kernel.cluster:
            shape[member.axis] = member.extent
        bounds += f" __cluster_dims__({', '.join(map(str, shape))})"
    head = f'extern "C" __global__ void {bounds} {entry}('
    params = _params(emitter)
    if len(head) + len(", ".join(params)) < COLUMNS:
        return [f"{head}{', '.join(params)}) {{"], params
    lines = [head]
    line = "   "
    for at, param in enumerate(params):
        piece = f" {param}{',' if at + 1 < len(params) else ') {'}"
        if len(line) + len(piece) > COLUMNS:
            lines.append(line)
            line = "   "
        line += piece
    return [*lines, line], params


def _params(emitter: SimtEmitter) -> list[Code]:
    kernel = emitter.kernel
    written = {value.buffer for op in kernel.walk() for value in op.written}
    found = []
    for param in passed_params(kernel):
        if isinstance(param, SizeParam):
            kind = named("long long" if param.bits == 64 else "int")
            found.append(code("{} {}", kind, emitter.name(param.sym)))
        elif isinstance(param, ScalarParam):
            found.append(code("{} {}", emitter.type(param.value.dtype), emitter.name(param.value)))
        else:
            form = "{}* {}" if param.value in written else "const {}* {}"
            found.append(code(form, emitter.type(param.value.dtype), emitter.name(param.value)))
    kind = named("tensor_map_t")
    maps = (code("const __grid_constant__ {} {}", kind, named(made.name)) for made in kernel.tensor_maps)
    return [*found, *maps]


def _start(emitter: SimtEmitter) -> None:
    """Thread and block indices, and the shared buffer."""
    kernel, kind = emitter.kernel, named("const int")
    emitter.declare(kind, named(THREAD), Code("threadIdx.x"), optional=True)
    for axis, letter in zip(kernel.grid, "xyz", strict=False):
        extent = emitter.spell(axis.extent)
        emitter.declare(
            kind, emitter.name(axis.sym), Code(f"blockIdx.{letter}"), comment=f"of {extent}", optional=True
        )
    for member in kernel.cluster:
        found = call(f"cluster_block_{'xyz'[member.axis]}")
        emitter.declare(kind, emitter.name(member.sym), found, comment=f"of {member.extent}", optional=True)
    if emitter.shared_bytes:
        align = math.lcm(16, *(op.align for op in kernel.walk() if isinstance(op, Shared)))
        emitter.line(code("extern __shared__ __align__({}) unsigned char {}[];", align, SHARED_MEMORY))
