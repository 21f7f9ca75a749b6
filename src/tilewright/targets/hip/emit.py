"""The HIP target: its rules beyond those of `simt`, its passes, and HIP text from a lowered kernel.

Source: AMD's ISA documents of CDNA 2, 3 and 4, "Memory scopes", "LDS", and the instructions
``GLOBAL_LOAD_LDS``; LLVM, "User Guide for AMDGPU Backend".
"""

from __future__ import annotations

from collections.abc import Iterator

from tilewright.arch import Arch
from tilewright.errors import Violation
from tilewright.ir.async_ops import ASYNC_OPS, Role, RoleBarrier
from tilewright.ir.copies import BULK_VERBS
from tilewright.ir.kernel import Kernel
from tilewright.ir.ops import AsyncCommit, AsyncWait, Copy, Mma, Op
from tilewright.passes.by_address import deal_by_address
from tilewright.passes.expand_mma import OPERANDS
from tilewright.passes.idle_waits import IDLE_WAITS
from tilewright.passes.memory_instructions import WIDTHS
from tilewright.passes.packed import PACKED
from tilewright.passes.pipeline import Pass, Passed, run_passes
from tilewright.passes.quotients import INVERSES
from tilewright.passes.relayout import relayout_shared
from tilewright.passes.shared_plan import SHARED_PLAN
from tilewright.symbolic.expr import add, mul
from tilewright.symbolic.nodes import Int
from tilewright.targets.amd import ARCHITECTURES
from tilewright.targets.hip.prelude import DIALECT
from tilewright.targets.matrix_cores import nearest
from tilewright.targets.rules import EmittedText, RuleTable
from tilewright.targets.simt.banks import Serving, spread_over_banks
from tilewright.targets.simt.copies import access, plan, title
from tilewright.targets.simt.emit import emit_text, meet
from tilewright.targets.simt.emitter import SIMT_RULES, SimtEmitter
from tilewright.targets.simt.legality import beyond, not_executed
from tilewright.targets.simt.thread_values import split_offset
from tilewright.targets.statements import Do, call, code, named
from tilewright.targets.target import CUDA, HIP, REFERENCE

HIP_RULES = RuleTable(HIP.name, SIMT_RULES)
"""The rules of the HIP target: those of `simt`, and of copies into shared memory."""

MOST_COUNTED = 63
"""Most loads that a wait can leave pending."""


@HIP_RULES.rule(Copy, variant="async")
def load_to_shared(emitter: SimtEmitter, op: Copy) -> None:
    """``global_load_lds``: each lane loads the next elements in the order of addresses, or zeros."""
    vector, size = op.vector or 1, op.target.dtype.bytes
    text = f"{title(op, vector)}, in the background"
    with emitter.scope(op, text, emitter.participants(op.spread)) as scope:
        path, at = plan(scope, op.spread, vector)
        source = access(scope, "from", op.source, at, path.loops, vector, const=True)
        start: Int = op.target.tensor.view.at((0,))
        base, step = split_offset(add(start, at[0]), path.loops, emitter.sizes)
        to = scope.name("to")
        first = call("shared_address", emitter.base(op.target))
        emitter.constant("unsigned", to, call("of_first_lane", emitter.plus(first, mul(base, size))))
        place = emitter.plus(to, mul(step, size))
        address, exists = source.address(emitter), source.condition(emitter)
        if exists is not None:
            address = code("{} ? (const void*)({}) : {}", exists, address, named("zeros"))
        emitter.one_line(path.loops, Do(call(f"load_to_shared_{vector * size}", address, place)))


@HIP_RULES.rule(AsyncCommit)
def async_commit(emitter: SimtEmitter, op: AsyncCommit) -> None:
    """Write nothing: waits count loads."""


@HIP_RULES.rule(AsyncWait)
def async_wait(emitter: SimtEmitter, op: AsyncWait) -> None:
    """``s_waitcnt vmcnt``: loads complete in the order in which they started."""
    left = min(op.accesses or 0, MOST_COUNTED)
    emitter.comment(op, f"wait until at most {left} loads are unfinished")
    emitter.do(call("loads_wait", of=[left]))


@HIP_RULES.rule(RoleBarrier)
def role_barrier(emitter: SimtEmitter, op: RoleBarrier) -> None:
    """``s_barrier``, which waits for all waves of the block, wherever in the program they arrive."""
    emitter.comment(op, f"barrier {op.number} of all threads, which may come from different places")
    emitter.do(call("in_this_order"))
    meet(emitter)
    emitter.do(call("in_this_order"))


# ---------------------------------------------------------------- passes, in order


def _spread(kernel: Kernel, arch: Arch) -> Passed:
    serving = Serving(
        *(arch.lanes, arch.banks, arch.read_order),
        matrices=False,
        pairs=False,
        by_address=bool(arch.async_bytes),
    )
    return relayout_shared(kernel, lambda op, using: spread_over_banks(op, using, serving))


PASSES: tuple[Pass, ...] = (
    PACKED,
    Pass(
        "swizzles",
        "Shared tensors get a swizzle if their accesses would cause bank conflicts.",
        _spread,
    ),
    WIDTHS,
    Pass(
        "by-address",
        "Asynchronous copies are distributed by address in shared memory; others become synchronous.",
        lambda kernel, arch: deal_by_address(kernel, arch),
    ),
    OPERANDS,
    SHARED_PLAN,
    IDLE_WAITS,
    INVERSES,
)


def lower(kernel: Kernel, arch: Arch) -> Passed:
    """Return the kernel that the text spells, and a note for each choice that was made."""
    return run_passes(kernel, arch, PASSES)


# ---------------------------------------------------------------- text


def emit(kernel: Kernel, arch: Arch | str) -> EmittedText:
    """Return the HIP text of a kernel, which includes no header.

    Args:
        kernel: the traced kernel; it must break no rule.
        arch: the architecture, or its name.

    Returns:
        The text, with the lowered kernel that it spells.
    """
    chosen = HIP.architecture(arch)
    return emit_text(kernel, lower(kernel, chosen), chosen, HIP_RULES, DIALECT)


# ---------------------------------------------------------------- requirements that are not met

NOT_ON_AMD = {op.name for op in ASYNC_OPS} - {Role.name, RoleBarrier.name} | {*BULK_VERBS}
"""The verbs of transaction barriers, of bulk copies, of asynchronous MMA, of dependent launches."""


def violations(kernel: Kernel, arch: Arch | str) -> list[Violation]:
    """Return every rule of an architecture that a kernel breaks, with the nearest legal choice.

    Args:
        kernel: the traced kernel.
        arch: the architecture, or its name.
    """
    chosen = HIP.architecture(arch)
    found = list(beyond(kernel, chosen, DIALECT, ARCHITECTURES.values()))
    for op in kernel.walk():
        found.extend(_operation(op, chosen, kernel.threads))
    return found


def _operation(op: Op, arch: Arch, threads: int) -> Iterator[Violation]:
    if isinstance(op, Mma):
        atom = op.mma.atom
        yield from not_executed(op, arch, nearest(atom.a_dtype, atom.c_dtype, arch.features))
    elif op.verb in NOT_ON_AMD:
        others = f"target {CUDA.name} or {REFERENCE.name}"
        yield op.violation("target", f"{arch.name} has no {op.verb}", others)
    elif isinstance(op, Role) and op.registers is not None:
        text = (
            f"registers={op.registers} for a role; on {arch.name} all waves of a kernel have the same number"
        )
        yield op.violation("registers", text, "registers=None")
    elif isinstance(op, RoleBarrier) and op.threads != threads:
        rule = f"on {arch.name} a barrier is for all {threads} threads of a block"
        text = f"a barrier of {op.threads} threads; {rule}"
        yield op.violation("role_barrier", text, f"threads={threads}")
    elif isinstance(op, Copy) and op.engine == "matrix":
        text = f"{arch.name} has no matrix copy from {op.source} to {op.target}"
        yield op.violation("engine", text, "engine='direct', or no engine= to let the target choose")
