"""CUDA's rules for transaction barriers, bulk tensor copies, and asynchronous MMA.

Source: PTX ISA, sections on mbarrier, cp.async.bulk.tensor, tensor maps, fence.proxy, wgmma, setmaxnreg and
griddepcontrol.
"""

from __future__ import annotations

from dataclasses import dataclass

from tilewright.ir import async_ops as ops
from tilewright.ir.async_legality import SwizzledRows, known_box, swizzled_rows
from tilewright.ir.clusters import needs_cluster_scope, only_parts, sharing
from tilewright.ir.copies import AcquireMap, ByMap, Copy, is_bulk_load
from tilewright.ir.kernel import layout_shared
from tilewright.ir.ops import For
from tilewright.ir.types import MapInMemory, Value
from tilewright.symbolic.expr import add, any_of, less, maximum, minimum, mul, negate, parts_of
from tilewright.symbolic.nodes import TRUE, Cond, Constant, Element, Int, Sym, bits
from tilewright.symbolic.rebuilding import elements, with_elements
from tilewright.targets.cfamily import loop as loop_of_statements
from tilewright.targets.cuda.emit import map_of
from tilewright.targets.cuda.instructions import AsyncForm, function
from tilewright.targets.cuda.spelling import CUDA_RULES
from tilewright.targets.cuda.wgmma import CLUSTER_SCOPE
from tilewright.targets.simt.copies import when
from tilewright.targets.simt.dialect import SHARED_MEMORY, THREAD
from tilewright.targets.simt.emitter import LocalNames, SimtEmitter
from tilewright.targets.statements import Code, Do, call, code, named
from tilewright.views.boxes import ROW_BYTES

# ----------------------------------------------------------------
#
# The thread that acts for a role, and the addresses of barriers and tiles.


TID = named(THREAD)
FIRST_THREAD = code("{} == 0", TID)


def by_first_thread(emitter: SimtEmitter, what: Code) -> None:
    """Let the first thread of the role or block act for all of its threads."""
    emitter.add(when(FIRST_THREAD, Do(what)))


def barrier_of(emitter: SimtEmitter, barrier: Value, stage: Int) -> Code:
    """Return the address of a stage of a transaction barrier."""
    return emitter.plus(emitter.name(barrier), stage)


def address_of(emitter: SimtEmitter, tile: Value, step: Int = 0) -> Code:
    """Return the address of a tile's first element, plus ``step`` elements."""
    view = tile.tensor.view
    return emitter.plus(emitter.name(tile.buffer), add(view.at((0,) * view.rank), step))


# ---------------------------------------------------------------- bulk copies, and tensor maps in memory


@CUDA_RULES.rule(Copy, variant="bulk")
def bulk_copy(emitter: SimtEmitter, op: Copy) -> None:
    """``cp.async.bulk.tensor``, or ``cp.reduce.async.bulk.tensor``, by the role's first thread."""
    if is_bulk_load(op):  # it completes on the barrier; a mask has a bit for each block that gets the box
        assert op.barrier is not None, "the verifier asks for one"
        function, how = "tma_load", "by TMA"
        place = barrier_of(emitter, op.barrier, op.stage)
        places = [_map(emitter, op), address_of(emitter, op.target), place]
        if op.multicast:
            axes = ", ".join(map(str, op.multicast))
            along = f"axis {axes}" if len(op.multicast) == 1 else f"axes {axes}"
            function, how = "tma_load_multicast", f"by TMA, to all blocks along {along}"
            mask, shift = sharing(emitter.kernel.cluster, op.multicast)
            places.append(Code(f"{mask:#x}"))
            if shift != 0:
                places[-1] = code(f"{mask:#x} << {{}}", emitter.spell(shift, tight=True))
        if op.readers != 0:
            function += "_read_by"
            places.append(emitter.spell(op.readers))
    else:
        function, how = "tma_store", "by TMA"
        places = [_map(emitter, op), address_of(emitter, op.source)]
        if op.reduction is not None:
            function, how = f"tma_{op.reduction}", f"each {op.reduction!r} by TMA"
    box, text = known_box(op), f"{op.source} -> {op.target}, {how}"
    order = [*reversed(box.order)]  # the fastest dimension first
    if not elements(box.starts):
        emitter.comment(op, text)
        starts = [emitter.spell(box.starts[dim]) for dim in order]
        by_first_thread(emitter, call(f"{function}_{len(starts)}d", *places, *starts))
        return
    with emitter.scope(op, text) as scope:
        begins = [_with_integers(scope, start, box.where) for start in box.starts]
        starts = [emitter.spell(begins[dim]) for dim in order]
        by_first_thread(emitter, call(f"{function}_{len(starts)}d", *places, *starts))


MOST_START = 2**31 - 1
"""Largest coordinate of a box."""


def _with_integers(scope: LocalNames, start: Int, exist: Cond) -> Int:
    """Emit loads of the integers in memory that choose the start of a box; return the start with variables.

    If the integer does not exist, the start lies before the tensor; if it is very large, after the tensor.
    """
    emitter, factors = scope.emitter, dict(parts_of(start)[0])
    found: dict[Element, Int] = {}
    for one in elements(start):
        value = emitter.spell(one)
        if exist != TRUE:
            value = code("{} ? {} : -1", emitter.spell_cond(exist), value)
        kind, name = "int" if bits(one) == 32 else "long long", scope.name("chosen")
        emitter.constant(kind, name, value)
        most = MOST_START // max(factors.get(one, 1), 1) - 1
        variable = Sym(name, min(one.low, -1), one.high)
        found[one] = minimum(maximum(variable, -1), most) if one.high > most or one.low < -1 else variable
    begin: Int = with_elements(start, found)
    return begin


def _map(emitter: SimtEmitter, op: Copy) -> Code:
    held = op.ends[0].tensor.map
    if held is None:
        return code("&{}", named(map_of(emitter.kernel, op).name))
    return _map_in_memory(emitter, held)


def _map_in_memory(emitter: SimtEmitter, held: MapInMemory) -> Code:
    """Return the address of a tensor map in a table."""
    place = emitter.plus(emitter.name(held.table.buffer), held.table.tensor.view.at((held.row, held.column)))
    return code("(const {}*)({})", named("tensor_map_t"), place)


@CUDA_RULES.rule(ops.BulkCommit)
def bulk_commit(emitter: SimtEmitter, op: ops.BulkCommit) -> None:
    """``cp.async.bulk.commit_group``."""
    emitter.comment(op, "close the group of stores")
    by_first_thread(emitter, call("bulk_commit"))


@CUDA_RULES.rule(ops.BulkWait)
def bulk_wait(emitter: SimtEmitter, op: ops.BulkWait) -> None:
    """``cp.async.bulk.wait_group.read``."""
    emitter.comment(op, f"wait until at most {op.pending} groups of stores read shared memory")
    by_first_thread(emitter, call("bulk_wait", of=[op.pending]))


@CUDA_RULES.rule(ByMap)
def by_map(emitter: SimtEmitter, op: ByMap) -> None:
    """Emit nothing: the bulk copies of such a view name the address of its map."""


@CUDA_RULES.rule(AcquireMap)
def acquire_map(emitter: SimtEmitter, op: AcquireMap) -> None:
    """``fence.proxy.tensormap`` at system scope: the host has written the map."""
    held = op.source.tensor.map
    assert held is not None, "the verifier asks for one"
    emitter.comment(op, f"the tensor map of {op.source}, as it was written before the launch")
    by_first_thread(emitter, call("acquire_map", _map_in_memory(emitter, held)))


# ---------------------------------------------------------------- barriers and asynchronous MMA


ASSUME = "__builtin_assume"
"""The compiler's builtin that states a condition."""


@CUDA_RULES.rule(For)
def loop(emitter: SimtEmitter, op: For) -> None:
    """Write a loop; state that a loop with asynchronous MMAs has an iteration, if that is certain.

    Otherwise the assembler sees a path past the loop, and waits for every single MMA.
    """
    is_certain = less(op.start, op.stop) == TRUE and not isinstance(op.stop, int)
    multiplies = any(isinstance(inner, ops.MmaAsync) for inner in op.body.walk())
    loop_of_statements(emitter, op, ASSUME if is_certain and multiplies else "")


@CUDA_RULES.rule(ops.MBarrier)
def mbarrier(emitter: SimtEmitter, op: ops.MBarrier) -> None:
    """Declare a transaction barrier in shared memory, which the first thread initialises."""
    offset = layout_shared(emitter.kernel)[0][op.result]
    name = emitter.name(op.result)
    emitter.comment(op, f"{name}: {op.stages} barriers of {op.arrivals} arrivals")
    kind = named("mbarrier_t")
    emitter.declare(code("{}* const", kind), name, code("({}*)({} + {})", kind, named(SHARED_MEMORY), offset))
    by_first_thread(emitter, call("mbarrier_init", name, op.stages, op.arrivals))


@CUDA_RULES.rule(ops.Arrive)
def arrive(emitter: SimtEmitter, op: ops.Arrive) -> None:
    """``mbarrier.arrive``, with the bytes that the phase waits for."""
    place = barrier_of(emitter, op.barrier, op.stage)
    arrival, first, whose = call("mbarrier_arrive", place), FIRST_THREAD, ""
    if op.block is not None:
        scope = "" if op.relaxed else _scope(emitter)
        arrival = call(f"mbarrier_arrive_at{scope}", place, emitter.spell(op.block))
        whose = " of another block"
    elif op.expect_bytes:
        arrival = call("mbarrier_arrive_expect", place, op.expect_bytes)
    if op.each == "warp":
        emitter.comment(op, f"each warp arrives at {op.barrier}{whose}")
        emitter.do(call(emitter.dialect.warp_barrier))
        first = code("{} % {} == 0", TID, emitter.kernel.lanes)
    elif op.expect_bytes:
        emitter.comment(op, f"{op.barrier} waits for {op.expect_bytes} bytes")
    else:
        emitter.comment(op, f"arrive at {op.barrier}{whose}")
    emitter.add(when(first, Do(arrival)))


@CUDA_RULES.rule(ops.Wait)
def wait(emitter: SimtEmitter, op: ops.Wait) -> None:
    """``mbarrier.try_wait.parity`` until it succeeds."""
    emitter.comment(op, f"wait for {op.barrier}")
    place = barrier_of(emitter, op.barrier, op.stage)
    emitter.do(call(f"mbarrier_wait{_scope(emitter)}", place, emitter.spell(op.parity)))


def _scope(emitter: SimtEmitter) -> str:
    """Return the suffix of the arrive and wait functions: cluster scope if the threads need it."""
    return CLUSTER_SCOPE if needs_cluster_scope(emitter.kernel) else ""


@CUDA_RULES.rule(ops.FenceAsync)
def fence_async(emitter: SimtEmitter, op: ops.FenceAsync) -> None:
    """``fence.proxy.async`` of one memory."""
    if op.memory == "global":
        emitter.comment(op, "make writes to global memory visible to TMA")
        emitter.do(call("fence_async_global"))
        return
    emitter.comment(op, "make writes to shared memory visible to TMA and tensor cores")
    emitter.do(call("fence_async"))


@CUDA_RULES.rule(ops.MmaFence)
def mma_fence(emitter: SimtEmitter, op: ops.MmaFence) -> None:
    """``wgmma.fence``."""
    emitter.comment(op, "registers are ready")
    emitter.do(call("mma_fence"))


@dataclass(frozen=True)
class _Operand:
    """An operand in shared memory, which a descriptor addresses in units of 16 bytes.

    Args:
        value: the tile.
        layout: the layout of its panels.
        unit: rows of one instruction.
        depth: depth of one instruction.
    """

    value: Value
    layout: SwizzledRows
    unit: int
    depth: int

    @staticmethod
    def of(value: Value, unit: int, depth: int) -> _Operand:
        layout = swizzled_rows(value.tensor.view, value.dtype.bytes)
        assert layout is not None, "the verifier refuses other layouts"
        return _Operand(value, layout, unit, depth)

    def rows(self, number: Int) -> Int:
        """Return the elements from the first row to the ``number``-th group of ``unit`` rows."""
        width = ROW_BYTES // self.value.dtype.bytes
        return mul(number, self.unit * width if self.layout.along else self.unit // width * self.layout.elems)

    def deeper(self, step: Int) -> Int:
        """Return the elements from the first k to the first k of the ``step``-th instruction."""
        width = ROW_BYTES // self.value.dtype.bytes
        if not self.layout.along:
            return mul(step, self.depth * width)
        if not self.layout.elems:
            return mul(step, self.depth)
        steps = width // self.depth
        return add(mul(step % steps, self.depth), mul(step // steps, self.layout.elems))

    def descriptor(self, emitter: SimtEmitter, rows: Int) -> Code:
        """Return the descriptor of the tile, starting at a row."""
        start = address_of(emitter, self.value, rows)
        if self.layout.along:
            return call("descriptor", start)
        return call("descriptor_of_panels", start, self.layout.elems * self.value.dtype.bytes)

    def moved(self, emitter: SimtEmitter, descriptor: Code, elems: Int) -> Code:
        """Return the descriptor, moved by some elements."""
        per_unit = 16 // self.value.dtype.bytes
        return emitter.plus(descriptor, elems // per_unit)


@CUDA_RULES.rule(ops.MmaAsync)
def mma_async(emitter: SimtEmitter, op: ops.MmaAsync) -> None:
    """Emit a ``wgmma`` for each repeat of the atom, and for each atom along K."""
    mma = op.mma
    m, n, k = mma.atom.shape
    a = _Operand.of(op.a, m, k) if op.a.is_tensor else None
    b = _Operand.of(op.b, n, k)
    along = "".join(letter for letter, side in (("m", a), ("n", b)) if side and not side.layout.along)
    sign = "-=" if op.negative else "+="
    with emitter.scope(op, f"{op.c} {sign} {op.a} * {op.b}, by {mma.atom.name}") as scope:
        group: tuple[Int, Int] = 0, 0  # the warpgroup's place among those of the MMA, uniform in a warp
        if mma.warps != (1, 1):
            number = Sym(scope.name("group"), 0, mma.warps[0] * mma.warps[1] - 1)
            emitter.constant("int", named(number.name), call("uniform", code("{} / 128", TID)))
            group = number % mma.warps[0], number // mma.warps[0]
        names = scope.name("a"), scope.name("b")
        for name, side, at, repeats in zip(names, (a, b), group, mma.repeats, strict=True):
            if side is not None:
                first = side.descriptor(emitter, side.rows(mul(at, repeats)))
                emitter.declare(code("const {}", named("descriptor_t")), name, first)
        depth = op.b.tensor.shape[1]
        assert isinstance(depth, int)
        step = Sym(scope.name("i"), 0, depth // k - 1)
        loops = (Sym(scope.name("j"), 0, mma.repeats[1] - 1), Sym(scope.name("u"), 0, mma.repeats[0] - 1))
        row, col, deep = (loop if loop.high else 0 for loop in (*reversed(loops), step))
        c_values, a_values = mma.atom.c.size_values, mma.atom.a.size_values
        acc = add(mul(row, c_values), mul(col, c_values * mma.repeats[0]))
        target = emitter.name(op.c)
        if acc != 0:
            target = code("&{}[{}]", target, emitter.spell(acc))
        b_text = b.moved(emitter, names[1], add(b.deeper(deep), b.rows(col)))
        if a is not None:
            a_text = a.moved(emitter, names[0], add(a.deeper(deep), a.rows(row)))
        else:
            at = add(mul(row, a_values), mul(deep, a_values * mma.repeats[0]))
            a_text = code("&{}[{}]", emitter.name(op.a), emitter.spell(at))
        made = function(mma.atom, AsyncForm(a is None, along, op.fresh is not False, op.negative))
        assert made is not None, "legality refuses other atoms"
        adds: tuple[Code, ...] = ()
        if op.fresh is not False:  # all steps but the first add to the sums
            before = negate(Constant(op.fresh) if isinstance(op.fresh, bool) else op.fresh)
            adds = (emitter.spell_cond(any_of(less(0, step), before) if step.high else before),)
        multiplied = Do(call(emitter.defined(made), target, a_text, b_text, *adds))
        emitter.one_line([loop for loop in (step, *loops) if loop.high], multiplied)


@CUDA_RULES.rule(ops.MmaCommit)
def mma_commit(emitter: SimtEmitter, op: ops.MmaCommit) -> None:
    """``wgmma.commit_group``."""
    emitter.comment(op, "close the group of MMAs")
    emitter.do(call("mma_commit"))


@CUDA_RULES.rule(ops.MmaWait)
def mma_wait(emitter: SimtEmitter, op: ops.MmaWait) -> None:
    """``wgmma.wait_group``."""
    emitter.comment(op, f"wait until at most {op.pending} groups of MMAs are unfinished")
    emitter.do(call("mma_wait", of=[op.pending]))


@CUDA_RULES.rule(ops.RoleBarrier)
def role_barrier(emitter: SimtEmitter, op: ops.RoleBarrier) -> None:
    """``bar.sync`` with a number."""
    emitter.comment(op, f"barrier {op.number} of {op.threads} threads")
    if isinstance(op.number, int):
        emitter.do(call("role_barrier", of=[op.number, op.threads]))
    else:
        emitter.do(call("role_barrier_of_group", emitter.spell(op.number), of=[op.threads]))


@CUDA_RULES.rule(ops.ClusterBarrier)
def cluster_barrier(emitter: SimtEmitter, op: ops.ClusterBarrier) -> None:
    """``barrier.cluster``; if it only ends accesses to shared memory, it waits for no global writes."""
    emitter.comment(op, "barrier of the cluster")
    emitter.do(call("cluster_part" if only_parts(emitter.kernel, op) else "cluster_barrier"))


@CUDA_RULES.rule(ops.ClusterArrive)
def cluster_arrive(emitter: SimtEmitter, op: ops.ClusterArrive) -> None:
    """``barrier.cluster.arrive``."""
    emitter.comment(op, "arrive at the barrier of the cluster")
    emitter.do(call("cluster_arrive"))


@CUDA_RULES.rule(ops.ClusterWait)
def cluster_wait(emitter: SimtEmitter, op: ops.ClusterWait) -> None:
    """``barrier.cluster.wait``."""
    emitter.comment(op, "wait for the blocks of the cluster")
    emitter.do(call("cluster_wait"))


@CUDA_RULES.rule(ops.Peer)
def peer(emitter: SimtEmitter, op: ops.Peer) -> None:
    """Write nothing: accesses to the view call the function that maps its address."""


@CUDA_RULES.rule(ops.PriorGridWait)
def prior_grid_wait(emitter: SimtEmitter, op: ops.PriorGridWait) -> None:
    """``griddepcontrol.wait``."""
    emitter.comment(op, "wait for the grids before this one")
    emitter.do(call("prior_grid_wait"))


@CUDA_RULES.rule(ops.LaunchDependents)
def launch_dependents(emitter: SimtEmitter, op: ops.LaunchDependents) -> None:
    """``griddepcontrol.launch_dependents``."""
    emitter.comment(op, "the grids after this one may begin")
    emitter.do(call("launch_dependents"))
