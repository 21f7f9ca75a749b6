"""CUDA's rules: shared memory, asynchronous copies, ldmatrix, tensor cores, synchronisation."""

from __future__ import annotations

from tilewright.ir.ops import AsyncCommit, AsyncWait, Copy
from tilewright.symbolic.expr import mul
from tilewright.symbolic.nodes import Sym
from tilewright.targets.rules import RuleTable
from tilewright.targets.simt.conversion import converted
from tilewright.targets.simt.copies import access, place, plan, title, when
from tilewright.targets.simt.emitter import LOOPS, SIMT_RULES, SimtEmitter, element, walk_of
from tilewright.targets.simt.thread_values import thread_coordinate, walk
from tilewright.targets.statements import Assign, Do, call, code
from tilewright.targets.target import CUDA

CUDA_RULES = RuleTable(CUDA.name, SIMT_RULES)
"""The rules of the CUDA target."""


@CUDA_RULES.rule(Copy, variant="matrix")
def copy_matrices(emitter: SimtEmitter, op: Copy) -> None:
    """``ldmatrix``, or ``stmatrix`` of converted vectors."""
    how = op.matrices
    assert how is not None, "a pass has chosen them"
    # The functions of the prelude are called ldmatrix_x4, stmatrix_x4_trans and so on.
    function = f"matrix_x{how.count}{'_trans' if how.transposed else ''}"
    text = f"{op.source} -> {op.target}, {how.count} matrices at a time"
    with emitter.scope(op, text, emitter.participants(op.spread)) as scope:
        rank, each = op.spread.rank, how.count * how.word
        path = walk(how.values, rank, 1, scope.names(LOOPS))
        start = thread_coordinate(how.lanes, rank, emitter.thread(op.spread.size_threads))
        at = walk_of(path, scope.coordinate(start))
        if op.target.is_fragment:
            pointer, step = place(scope, "from", op.source, at, path.loops, const=True)
            register = emitter.spell(mul(path.register, each))
            target = code("&{}[{}]", emitter.name(op.target), register)
            loaded = call(f"ld{function}", target, emitter.plus(pointer, step))
            emitter.one_line(path.loops, Do(loaded))
            return
        pointer, step = place(scope, "to", op.target, at, path.loops, const=False)
        packed, e = scope.name("packed"), Sym(scope.name("e"), 0, each - 1)
        with emitter.loops(path.loops):
            emitter.declare_array(op.target.dtype, packed, each, 4)
            value = converted(
                code("{}[{}]", emitter.name(op.source), emitter.spell(mul(path.register, each) + e)),
                op.source.dtype,
                op.target.dtype,
                emitter.dialect.types,
            )
            emitter.one_line((e,), Assign(element(packed, e), value))
            emitter.do(call(f"st{function}", emitter.plus(pointer, step), packed))


@CUDA_RULES.rule(Copy, variant="async")
def copy_async(emitter: SimtEmitter, op: Copy) -> None:
    """``cp.async``, which writes zeros outside of the source."""
    vector = op.vector or 1
    guard = emitter.participants(op.spread, once=True)
    with emitter.scope(op, f"{title(op, vector)}, in the background", guard) as scope:
        path, at = plan(scope, op.spread, vector)
        source = access(scope, "from", op.source, at, path.loops, vector, const=True)
        target = access(scope, "to", op.target, at, path.loops, vector, const=False)
        places = [target.address(emitter), source.address(emitter)]
        if (exists := source.condition(emitter)) is not None:
            places.append(exists)
        copied = Do(call("copy_async", *places, of=[vector * op.source.dtype.bytes]))
        emitter.one_line(path.loops, when(target.condition(emitter), copied))


@CUDA_RULES.rule(AsyncCommit)
def async_commit(emitter: SimtEmitter, op: AsyncCommit) -> None:
    """``cp.async.commit_group``."""
    emitter.comment(op, "close the group of copies")
    emitter.do(call("async_commit"))


@CUDA_RULES.rule(AsyncWait)
def async_wait(emitter: SimtEmitter, op: AsyncWait) -> None:
    """``cp.async.wait_group``."""
    emitter.comment(op, f"wait until at most {op.pending} groups are unfinished")
    emitter.do(call("async_wait", of=[op.pending]))
