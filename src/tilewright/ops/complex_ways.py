"""How a complex product is launched: one kernel on the arrays as they lie, or planes of operands first."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tilewright.arch import Arch
from tilewright.ops.complex_planes import PLANES, UNIT_BYTES, Planes
from tilewright.ops.complex_products import OPERANDS, SUMS
from tilewright.ops.problem import IMAGINARY, Problem
from tilewright.runtime.arrays import ArrayInfo
from tilewright.schedule.choose import Splitting
from tilewright.schedule.schedule import Schedule

METHODS = ("4m", "3m")
"""By how many products of real matrices a complex one is computed."""

LAUNCH_US = 3.0
"""What one more kernel takes before it does anything."""

STRIDED_SHARE, DENSE_SHARE = {2: 0.12, 4: 0.25}, 0.6
"""Of the rate of the matrix units: what is reached on operands of which every other number is skipped, by
the bytes of a number, and on dense ones.  Estimates, which nobody has measured yet."""


@dataclass(frozen=True)
class Way:
    """What is launched.

    Args:
        method: one of `METHODS`.
        planes: the operands of which planes are written first, each by one launch.
    """

    method: str
    planes: tuple[Planes, ...] = ()

    @property
    def operands(self) -> tuple[str, ...]:
        """The arrays that the kernel multiplies."""
        return OPERANDS if self.method == METHODS[0] else (*OPERANDS, *SUMS)

    @property
    def size_bytes(self) -> int:
        """Of the memory that planes take."""
        return sum(one.size_bytes for one in self.planes)

    def __str__(self) -> str:
        products = {"4m": "four products", "3m": "three products"}[self.method]
        names = " and ".join(f"{_words(one)} of {one.name}" for one in self.planes)
        return f"{products} in one kernel" + (f", behind planes: {names}" if names else "")


def _words(planes: Planes) -> str:
    words = dict(zip(PLANES, ("real parts", "imaginary parts", "sums"), strict=True))
    return ", ".join(words[end] for end in planes.kept)


def way_for(
    infos: Mapping[str, ArrayInfo],
    problem: Problem,
    method: str,
    precision: str,
    machine: tuple[Arch, int],
    how: Schedule | Splitting | None,
    conjugates: tuple[bool, ...],
) -> Way:
    """The way that is estimated to take least time.

    Planes serve bulk copies, which a schedule may ask for, and matrix units that are fed by them; everywhere
    else one kernel reads the arrays as they lie.  Three products take planes of sums on every machine.

    Args:
        infos: the arrays of the problem, by name.
        problem: what is multiplied.
        method: one of `METHODS`.
        precision: how exactly f32 is multiplied.
        machine: its architecture, and how many processors there are.
        how: the caller's schedule; else one will be chosen, which splits K so, if that is said.
        conjugates: which operands are conjugated.
    """
    arch, processors = machine
    k_major = precision == "tf32" and "sm_90a" in arch.features  # as its multiply takes them
    strided = [name for name in ("a", "b") if not _is_dense(infos, name, k_major=k_major)]
    if isinstance(how, Schedule):
        wanted = strided if how.staging == "tma" else []
    elif how is not None and how.batch_invariant:
        wanted = []  # whether planes pay depends on how many rows there are
    else:
        wanted = strided if _gains(infos, problem, precision, (arch, processors), strided) else []
    found = []
    for name, conjugate in zip(("a", "b"), conjugates, strict=False):
        kept = (*(PLANES[:2] if name in wanted else ()), *(PLANES[2:] if method == METHODS[1] else ()))
        if kept:
            rank = len(problem.batch)
            along = rank + (1 if name == "a" else 0) if k_major and name in wanted else None
            found.append(Planes.of(name, infos[name], kept, along, negative=conjugate))
    return Way(method, tuple(found))


def _is_dense(infos: Mapping[str, ArrayInfo], name: str, *, k_major: bool) -> bool:
    """Whether bulk copies carry both parts of an operand."""
    for info in (infos[name], infos[name + IMAGINARY]):
        unit = UNIT_BYTES // info.dtype.bytes
        pairs = [pair for pair in zip(info.shape, info.strides, strict=True) if pair[0] > 1]
        last = [step for extent, step in list(zip(info.shape, info.strides, strict=True))[-2:] if extent > 1]
        if k_major:
            last = [info.strides[-1 if name == "a" else -2]]
        if 1 not in last or info.pointer % UNIT_BYTES or any(step % unit for _, step in pairs if step != 1):
            return False
    return True


def _gains(
    infos: Mapping[str, ArrayInfo],
    problem: Problem,
    precision: str,
    machine: tuple[Arch, int],
    strided: list[str],
) -> bool:
    """Whether planes of some operands are estimated to be paid back by the faster product."""
    (arch, processors), dtype = machine, infos["a"].dtype
    kind = "tf32" if precision == "tf32" else dtype.name
    rates = arch.rates
    if rates is None or not strided or dtype.bytes not in STRIDED_SHARE or kind not in rates.tensor_flops:
        return False
    board = rates.boards[0]
    count = processors or board.multiprocessors
    most = rates.tensor_flops[kind] * count * board.clock_mhz
    items = 1
    for extent in problem.batch:
        items *= extent
    work = 8 * items * problem.m * problem.n * problem.k / most
    moved = sum(Planes.of(name, infos[name], PLANES[:2]).moved_bytes for name in strided)
    copied = moved / (board.copied_gbytes_per_s or board.memory_gbytes_per_s) / 1e3
    dense = work / DENSE_SHARE + copied + LAUNCH_US * len(strided)
    return dense < work / STRIDED_SHARE[dtype.bytes]
