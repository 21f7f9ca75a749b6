"""Executing a kernel on the caller's NumPy arrays."""

from __future__ import annotations

import itertools
import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tilewright.errors import LaunchError, LegalityError, Violation
from tilewright.functions.conversions import Array
from tilewright.ir import clusters
from tilewright.ir.async_ops import MmaAsync, Role
from tilewright.ir.fragment_ops import Coordinates, PrefixOp, Redistribute, ReduceOp
from tilewright.ir.kernel import Argument, Derived, Extent, Kernel, ScalarParam, Stride
from tilewright.ir.ops import Block, Copy, FragmentOp, Mma, Op
from tilewright.ir.types import Value
from tilewright.passes.expand_mma import wait_for_multiplies
from tilewright.passes.packed import copy_bytes
from tilewright.symbolic.nodes import Sym
from tilewright.symbolic.rebuilding import evaluate
from tilewright.targets.reference.barriers import Late
from tilewright.targets.reference.machine import Members, Simulator
from tilewright.targets.reference.meaning import REFERENCE
from tilewright.targets.reference.memory import (
    Storage,
    array_buffer,
    from_lowest,
    in_elements,
    new_buffer,
    share,
    share_histories,
)
from tilewright.targets.reference.numbers import NUMBERS, Numbers
from tilewright.targets.reference.report import Report, covered
from tilewright.targets.reference.selection import Selection
from tilewright.targets.reference.signals import (
    RESIDENT,
    has_signals,
    orderless,
    report_counters,
    run_together,
)
from tilewright.targets.rules import RuleTable
from tilewright.threads.distribution import Distribution


def run(
    kernel: Kernel,
    arrays: Mapping[str, Array],
    sizes: Mapping[str, int] | None = None,
    scalars: Mapping[str, Any] | None = None,
    *,
    lanes: int | None = None,
    check: bool = True,
    blocks: Iterable[tuple[int, ...]] | None = None,
    rules: RuleTable = REFERENCE,
    outputs: Collection[str] = (),
    whole: Collection[str] = (),
    work: int | None = None,
    resident: int = RESIDENT,
    numbers: Numbers = NUMBERS,
) -> Report:
    """Execute a kernel in place on NumPy arrays, and look for hazards.

    Args:
        kernel: the kernel.
        arrays: one array per tensor parameter, by name; any strides, also 0 and negative ones.
        sizes: integer parameters by name; extents and strides that are missing come from the arrays.
        scalars: one number per scalar parameter, by name.
        lanes: threads per warp; default: the kernel's.
        check: whether to look for hazards and to count; execution alone is about three times faster.
        blocks: indices of the blocks to execute, x first, each with all of its cluster; default: all.
        rules: rule of each operation.
        outputs: arrays without contents on entry: they begin as poison, and reads before a write are found.
        whole: arrays whose elements must all be written when all blocks have run.
        work: number of element accesses after which only representative blocks run; default: all blocks run.
        resident: number of blocks that certainly run at once, for blocks that wait for higher-numbered ones.
        numbers: the arithmetic of all numbers, and of the elements of the arrays.

    Returns:
        The findings and counters.  The run ends at the first block or cluster that cannot go on.

    Raises:
        LaunchError: an argument is missing or does not fit the kernel, a guard fails, or the clusters do not
            fill the grid.
        LegalityError: the kernel broke rules while it was traced, names more threads than it has, or an atom
            of another warp size.
        MissingRuleError: ``rules`` lacks an operation.

    Example:
        >>> import tilewright as tw
        >>> @tw.kernel(X="N", Y="N")
        ... def double(X, Y):
        ...     x = tw.load(X.tile((32,), (0,)).partition((32,)))
        ...     tw.copy(x + x, Y.tile((32,), (0,)))
        >>> x, y = np.arange(32, dtype=np.float32), np.zeros(32, np.float32)
        >>> print(run(double.trace(x, y), {"X": x, "Y": y}))
        kernel double: no findings
        ran 1 block of 32 threads in warps of 32, for N = 32
        >>> bool((y == x + x).all())
        True
    """
    asked = None if blocks is None else list(blocks)
    launch = Arguments.of(kernel, arrays, sizes, scalars, lanes, numbers)
    kernel, lanes, env, extents = launch.kernel, launch.lanes, launch.env, launch.extents
    again = work is not None or has_signals(kernel)
    before = {name: arrays[name].copy() for name in kernel.written_params} if again else {}
    late: Late = {}
    leaves_turns_out = True
    while True:
        buffers = bind_buffers(launch, check, numbers, outputs)
        share_histories(
            (buffers[value] for value in kernel.tensors),
            {value for value in kernel.tensors if value.name in kernel.written_params},
        )
        machine = Simulator(kernel, lanes, rules, buffers, launch.scalars, check, numbers, late)
        selection = Selection(kernel, env, extents, buffers, work, asked is not None, leaves_turns_out)
        members = launch.clusters(asked)
        if has_signals(kernel):
            done, ended = run_together(machine, members, resident)
            is_settled = machine.counts.is_settled or not check
        else:
            done, ended = 0, True
            for cluster in members:  # one after the other
                if selection.leaves_out([index for index, _ in cluster], machine.checker.accessed):
                    continue
                machine.turns = selection.turns
                ended = machine.run_cluster(cluster)
                if not ended:
                    break
                done += len(cluster)
                if machine.turns is not None and not machine.turns.is_balanced:
                    break
            is_clean = not machine.checker.findings.all()
            is_settled = selection.turns is None or (selection.turns.is_balanced and is_clean)
        if is_settled:
            break
        leaves_turns_out = False  # run again, with all iterations
        for name, contents in before.items():
            arrays[name][...] = contents
    if ended and done == math.prod(extents):  # otherwise other blocks might reset the counters
        report_counters(machine)
    selection.has_stopped = not ended
    uncovered: dict[str, int] = {}
    for op, value in ((each, value.buffer) for each in kernel.walk() for value in each.written):
        if value.name not in kernel.written_params or value.name in uncovered:
            continue
        missing = selection.unwritten(value, buffers[value].never_written())
        if missing is None:
            continue
        if buffers[value].history is not None:
            uncovered[value.name] = len(missing)
        if len(missing) and value.name in whole and selection.knows_all:
            machine.checker.uncovered(op, buffers[value], missing)
    found, counters = machine.checker.findings, machine.counters
    about = covered(kernel, env, machine.trail, extents, done, lanes, selection.told(done))
    waits = tuple(orderless(op) for op in machine.counts.orderless)
    every = found.all()
    return Report(kernel.name, every, found.omitted, counters, uncovered, done, coverage=about, waits=waits)


@dataclass(frozen=True)
class Arguments:
    """A kernel with the arguments of one launch.

    Args:
        kernel: the kernel, as the machine executes it.
        lanes: threads per warp.
        arrays: the arrays by name.
        env: the values of the kernel's sizes.
        extents: blocks along each axis of the grid.
        scalars: the caller's numbers.
    """

    kernel: Kernel
    lanes: int
    arrays: Mapping[str, Array]
    env: dict[Sym, int]
    extents: tuple[int, ...]
    scalars: dict[Value, Any]

    @staticmethod
    def of(
        kernel: Kernel,
        arrays: Mapping[str, Array],
        sizes: Mapping[str, int] | None = None,
        scalars: Mapping[str, Any] | None = None,
        lanes: int | None = None,
        numbers: Numbers = NUMBERS,
    ) -> Arguments:
        """Check the arguments of `run`, and find the sizes."""
        lanes = kernel.lanes if lanes is None else lanes
        if lanes < 1:
            raise LaunchError(f"kernel {kernel.name}: lanes={lanes}", f"lanes={kernel.lanes}")
        _verify(kernel, lanes)
        kernel = wait_for_multiplies(copy_bytes(from_lowest(kernel, arrays)))
        env = bind_sizes(kernel, arrays, sizes or {})
        for guard in kernel.guards:
            if (message := guard.broken(env)) is not None:
                raise LaunchError(f"kernel {kernel.name}: {message}")
        extents = tuple(int(evaluate(axis.extent, env)) for axis in kernel.grid)
        bound: dict[Value, Any] = {}
        for value in (param.value for param in kernel.params if isinstance(param, ScalarParam)):
            if value.name not in (scalars or {}):
                raise LaunchError(f"kernel {kernel.name} needs the number {value.name}")
            given = np.asarray((scalars or {})[value.name]).astype(value.dtype.numpy)
            bound[value] = numbers.scalar(given, value.dtype)
        return Arguments(kernel, lanes, arrays, env, extents, bound)

    def clusters(self, blocks: Iterable[tuple[int, ...]] | None = None) -> Iterator[Members]:
        """Yield the clusters of some blocks, by default of all."""
        for indices in _clusters(
            self.kernel, self.extents, _grid(self.extents) if blocks is None else blocks
        ):
            members = list[tuple[tuple[int, ...], dict[Sym, int]]]()
            for block in indices:
                axes = {axis.sym: at for axis, at in zip(self.kernel.grid, block, strict=True)}
                own = {member.sym: block[member.axis] % member.extent for member in self.kernel.cluster}
                members.append((block, {**self.env, **axes, **own}))
            yield members


def bind_sizes(kernel: Kernel, arrays: Mapping[str, Array], sizes: Mapping[str, int]) -> dict[Sym, int]:
    """Return the value of each integer parameter, from ``sizes`` or from the arrays.

    Raises:
        LaunchError: an integer argument or an array is missing, or a stride is no whole number of elements.
    """
    env: dict[Sym, int] = {}
    measured: dict[str, tuple[tuple[int, ...], tuple[int, ...]]] = {}
    for value in kernel.tensors:
        array = _array(arrays, value.name)
        if array.ndim != len(value.tensor.shape):
            raise LaunchError(f"{value} has rank {array.ndim}, the kernel takes {len(value.tensor.shape)}")
        shape, _ = measured[value.name] = in_elements(value.dtype, array)
        for dim, (extent, known) in enumerate(zip(shape, value.tensor.shape, strict=True)):
            wanted = env.setdefault(known, extent) if isinstance(known, Sym) else known
            if isinstance(wanted, int) and wanted != extent:
                raise LaunchError(f"{value}.shape[{dim}] is {extent}, but {known} is {wanted}")
    for param in sorted(kernel.sizes, key=lambda param: isinstance(param.source, Derived)):
        source = param.source
        if param.sym.name in sizes:
            env[param.sym] = sizes[param.sym.name]
            continue
        match source:
            case Extent():
                env[param.sym] = measured[source.tensor][0][source.dim]
            case Stride():
                env[param.sym] = measured[source.tensor][1][source.dim]
            case Argument():
                if source.name not in sizes:
                    raise LaunchError(f"kernel {kernel.name} needs the integer {source.name}")
                env[param.sym] = sizes[source.name]
            case Derived():
                env[param.sym] = int(evaluate(source.value, env))
    return env


def _array(arrays: Mapping[str, Array], name: str) -> Array:
    if name not in arrays:
        raise LaunchError(f"no array for {name}; given: {', '.join(arrays)}")
    return arrays[name]


def bind_buffers(
    launch: Arguments, check: bool = True, numbers: Numbers = NUMBERS, outputs: Collection[str] = ()
) -> dict[Value, Storage]:
    """Return the global memory of a launch, with poison in the outputs."""
    kernel, arrays, env = launch.kernel, launch.arrays, launch.env
    written = kernel.written_params
    buffers = {
        value: array_buffer(value, _array(arrays, value.name), value.name in written, check, numbers)
        for value in kernel.tensors
    }
    for space in kernel.workspaces:
        elems = max(0, int(evaluate(space.elems, env)))
        zeroed = space.zeroed or space.resets
        buffers[space.value] = new_buffer(space.value, elems, 0, check, numbers, zeroed=zeroed)
    for value in (value for value in kernel.tensors if value.name in outputs):
        sharing = [o for o in kernel.tensors if o is not value and share(buffers[o], buffers[value])]
        if sharing:
            raise LaunchError(
                f"{value} is listed in outputs=, so its contents are undefined, but it shares memory with "
                f"{sharing[0]}",
                f"leave {value} out of the outputs",
            )
        buffers[value].forget()
    return buffers


def _grid(extents: Sequence[int]) -> Iterable[tuple[int, ...]]:
    """Yield every block index, x fastest."""
    return (tuple(reversed(index)) for index in itertools.product(*(range(n) for n in reversed(extents))))


def _clusters(
    kernel: Kernel, extents: Sequence[int], blocks: Iterable[tuple[int, ...]]
) -> Iterable[list[tuple[int, ...]]]:
    """Yield the clusters of some blocks, each as its blocks' indices by rank."""
    shape = [1] * len(extents)
    for member in kernel.cluster:
        shape[member.axis] = member.extent
        if extents[member.axis] % member.extent:
            raise LaunchError(
                f"kernel {kernel.name}: {extents[member.axis]} blocks along axis {member.axis} are no "
                f"multiple of the cluster's {member.extent}"
            )
    begun = set()
    for index in blocks:
        first = tuple(at - at % extent for at, extent in zip(index, shape, strict=True))
        if first not in begun:
            begun.add(first)
            yield [tuple(at + i for at, i in zip(first, inner, strict=True)) for inner in _grid(shape)]


def _verify(kernel: Kernel, lanes: int) -> None:
    """Refuse a kernel that broke rules while it was traced, or that the reference cannot execute."""
    violations = [*kernel.violations, *clusters.violations(kernel)]
    violations += _block_violations(kernel.body, kernel.threads, lanes)
    if violations:
        raise LegalityError(kernel.name, REFERENCE.target, violations)


def _block_violations(
    block: Block, threads: int, lanes: int, first: int = 0, place: str = "block"
) -> Iterable[Violation]:
    """Yield the violations of operations that ``threads`` threads execute, from warp ``first`` on."""
    for op in block.ops:
        yield from _violations(op, threads, lanes, first, place)
        if isinstance(op, Role):
            last = op.first + op.warps
            if op.first < 0 or last * lanes > threads:
                text = f"warps {op.first} to {last - 1} of the {threads // lanes} warps of the {place}"
                yield op.violation("role", text, f"{last} warps in the {place}")
            for group in range(op.groups):
                begin = first + op.first + group * op.count
                yield from _block_violations(op.body, op.count * lanes, lanes, begin, "role")
        else:
            for region in op.regions:
                yield from _block_violations(region, threads, lanes, first, place)


def _violations(op: Op, threads: int, lanes: int, first: int, place: str) -> Iterable[Violation]:
    spreads: list[Distribution] = []
    match op:
        case Copy() if op.engine != "bulk":
            spreads.append(op.spread)
        case ReduceOp() | PrefixOp():
            yield from op.outside_warps(lanes)
        case FragmentOp() | Coordinates() | Redistribute():
            spreads.append(op.distribution)
        case Mma() if not op.mma.atom.asynchronous:
            spreads.append(op.mma.c())
            atom = op.mma.atom
            if atom.lanes != lanes and (atom.feature or max(lanes, atom.lanes) % min(lanes, atom.lanes)):
                text = f"{atom} is executed by {atom.lanes} lanes together; warps have {lanes}"
                yield op.violation("atom", text, f"lanes={atom.lanes}")
        case Mma() | MmaAsync():
            spreads.append(op.mma.c())
            if op.mma.atom.lanes % lanes or first * lanes % op.mma.atom.lanes:
                text = (
                    f"{op.mma.atom} is executed by {op.mma.atom.lanes} threads; these begin with warp {first}"
                )
                yield op.violation("atom", text, f"a role from warp 0 or {op.mma.atom.lanes // lanes}")
    for spread in spreads:
        if spread.size_threads > threads:
            text = f"{op.verb} takes {spread.size_threads} threads; the {place} has {threads}"
            warps = -(-spread.size_threads // lanes)
            nearest = f"threads={spread.size_threads}" if place == "block" else f"tw.role(warps={warps})"
            yield op.violation("threads", text, nearest)
