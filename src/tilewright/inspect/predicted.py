"""What a launch will ask of shared memory: instructions, passes over the banks and conflicts, from the IR."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields

from tilewright.inspect.executions import executions
from tilewright.ir.copies import is_by_threads
from tilewright.ir.kernel import Kernel
from tilewright.ir.ops import Copy, Op
from tilewright.runtime.binding import Binding
from tilewright.targets.simt.banks import Requests, in_shared, requests

NONE = Requests()


@dataclass(frozen=True)
class SharedTraffic:
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


def predicted_traffic(kernel: Kernel, binding: Binding) -> SharedTraffic:
    """What a launch will ask of shared memory, every tile counted as whole.

    What no instruction of a warp asks for is left out: the reads of ``wgmma``, what TMA reads and writes, and
    transaction barriers.

    Args:
        kernel: lowered for CUDA.
        binding: the integers of the launch.

    Raises:
        UnknownCountError: how often a copy runs depends on more than the sizes and the indices of blocks and
            loops.
    """
    totals = {part.name: NONE for part in fields(SharedTraffic)}
    for op, times in executions(kernel, binding, _counts):
        assert isinstance(op, Copy)
        for name, asked in _asked(op):
            totals[name] += asked * times
    return SharedTraffic(**totals)


def _counts(op: Op) -> bool:
    return is_by_threads(op) and (in_shared(op.source) or in_shared(op.target))


def _asked(op: Copy) -> Iterator[tuple[str, Requests]]:
    """What the warps of a block ask in one execution, by the fields of `SharedTraffic`."""
    by_matrix = "matrix_" * (op.engine == "matrix")
    if in_shared(op.source):
        yield f"{by_matrix}loads", requests(op, op.source)
    if in_shared(op.target):
        yield "async_copies" if op.engine == "async" else f"{by_matrix}stores", requests(op, op.target)
