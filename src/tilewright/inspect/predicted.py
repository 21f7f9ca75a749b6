"""What a launch will ask of shared memory: instructions, passes over the banks and conflicts, from the IR."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, fields

from tilewright.ir.kernel import Kernel
from tilewright.ir.ops import Block, Copy, CopyAsync, For, If, Let
from tilewright.layout.nodes import Sym
from tilewright.layout.walk import evaluate
from tilewright.runtime.binding import Binding
from tilewright.targets.arch import architecture
from tilewright.targets.cuda.banks import Requests, in_shared, requests
from tilewright.targets.cuda.rules import loads_by_matrix, stores_by_matrix

LANES = 32
NONE = Requests()


@dataclass(frozen=True)
class Traffic:
    """What all warps of a launch ask of shared memory.

    Args:
        loads: by loads into registers, without ``ldmatrix``.
        matrix_loads: by ``ldmatrix``.
        stores: by stores from registers, without ``stmatrix``.
        matrix_stores: by ``stmatrix``.
        async_copies: by ``cp.async``, which writes what comes from global memory.
    """

    loads: Requests = NONE
    matrix_loads: Requests = NONE
    stores: Requests = NONE
    matrix_stores: Requests = NONE
    async_copies: Requests = NONE

    @property
    def all(self) -> Requests:
        """By all of them."""
        return sum((getattr(self, part.name) for part in fields(self)), NONE)


def predicted_traffic(kernel: Kernel, binding: Binding, arch: str) -> Traffic | None:
    """What a launch will ask of shared memory, every tile counted as whole; None where that is not known.

    It is not known where the sizes of the launch do not say how often a copy runs: in roles, in loops and
    branches that depend on the block.  What TMA writes and ``wgmma`` reads is left out: no warp asks for it.

    Args:
        kernel: lowered for CUDA.
        binding: the integers of the launch.
        arch: the architecture.
    """
    env = {param.sym: binding.sizes[param.sym.name] for param in kernel.sizes}
    features = architecture(arch).features
    totals = {part.name: NONE for part in fields(Traffic)}
    try:
        for op, times in _executed(kernel.body, env):
            warps = math.ceil(min(op.spread.size_threads, kernel.threads) / LANES)
            for name, asked in _asked(op, features):
                totals[name] += asked * (times * warps * binding.blocks)
    except KeyError:
        return None
    return Traffic(**totals)


def _executed(block: Block, env: dict[Sym, int], times: int = 1) -> Iterator[tuple[Copy, int]]:
    """Each copy to or from shared memory, with how often a block executes it.

    Raises:
        KeyError: that depends on more than the environment.
    """
    env = dict(env)
    for op in block.ops:
        if isinstance(op, Copy):
            if _counts(op):
                yield op, times
        elif isinstance(op, Let):
            # One that depends on the block matters only where something is decided by it.
            if (value := _known(op, env)) is not None:
                env[op.result] = value
        elif any(
            isinstance(inner, Copy) and _counts(inner) for region in op.regions for inner in region.walk()
        ):
            if isinstance(op, For):
                start, stop = int(evaluate(op.start, env)), int(evaluate(op.stop, env))
                yield from _executed(op.body, env, times * len(range(start, stop, op.step)))
            elif isinstance(op, If):
                taken = op.then if evaluate(op.condition, env) else op.otherwise
                yield from _executed(taken, env, times)
            else:
                raise KeyError(op.name)


def _counts(op: Copy) -> bool:
    return in_shared(op.source) or in_shared(op.target)


def _known(op: Let, env: dict[Sym, int]) -> int | None:
    try:
        return int(evaluate(op.value, env))
    except KeyError:
        return None


def _asked(op: Copy, features: frozenset[str]) -> Iterator[tuple[str, Requests]]:
    """What one warp asks in one execution, by the fields of `Traffic`."""
    if in_shared(op.source):
        how = loads_by_matrix(op)
        yield ("loads" if how is None else "matrix_loads"), requests(op, op.source, how)
    if isinstance(op, CopyAsync):
        yield "async_copies", requests(op, op.target)
    elif in_shared(op.target):
        how = stores_by_matrix(op, features)
        yield ("stores" if how is None else "matrix_stores"), requests(op, op.target, how)
