"""Several ranks on one machine: kernels of every rank, and copies between them, under the hazard checker."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, cast

from tilewright.argument_checks import is_integer, is_sequence
from tilewright.calls import launches
from tilewright.dtypes import DType, u32
from tilewright.errors import LaunchError, Location, shown
from tilewright.ir.types import Memory, TensorType, Value
from tilewright.lang.source import here
from tilewright.runtime.arrays import ArrayInfo, describe
from tilewright.runtime.kernel import Bound, Kernel
from tilewright.runtime.reference import host_array
from tilewright.runtime.specimens import in_order
from tilewright.targets.reference.ranks import (
    EngineStep,
    Hold,
    KernelStep,
    Post,
    RanksReport,
    Send,
    Step,
    run_ranks,
)
from tilewright.targets.reference.signals import RESIDENT
from tilewright.targets.target import REFERENCE
from tilewright.views.view import View

if TYPE_CHECKING:
    from tilewright.runtime.reference import PreparedReference


@launches
def launch(kernel: Kernel | Bound, *arguments: Any, **named: Any) -> Step:
    """A step of a rank that launches a kernel; see `ranks`.

    Args:
        kernel: the kernel.
        arguments: as for a launch; arrays of the host, which `ranks` reads and writes in place.
        named: arguments by the names of the kernel's parameters, and constants that are not bound.

    Raises:
        LaunchError: the arguments do not fit the kernel.
        LegalityError: the kernel breaks rules for these arguments.

    Example:
        >>> import numpy as np
        >>> import tilewright as tw
        >>> @tw.kernel(X="N")
        ... def double(X):
        ...     x = tw.load(X.tile((32,), (0,)).partition((32,)))
        ...     tw.copy(x + x, X.tile((32,), (0,)))
        >>> x = np.ones(32, np.float32)
        >>> tw.testing.ranks([[tw.testing.launch(double, x)]]).is_clean, float(x[0])
        (True, 2.0)
    """
    bound = kernel
    if isinstance(bound, Kernel):
        bound, named = bound._split(named)
    given = tuple(in_order(bound.program, arguments, named, numbers=True))
    prepared = cast("PreparedReference", bound._prepare(given, REFERENCE.name).prepared)
    return KernelStep(prepared.bound_to(given), _line(), given)


@launches
def send(source: Any, target: Any, counter: Any = None, value: int = 1) -> Step:
    """A step of a rank in which a copy engine does ``target = source``, then ``counter = value``.

    The counter is written with release at the scope of the system: a wait for it, of scope ``"system"``,
    comes after the copy.  `cuMemcpyAsync` and `cuStreamWriteValue32` in one stream do the same.

    Args:
        source: an array of this rank.
        target: an array of the same dtype and shape, often in the memory of another rank.
        counter: an array of one u32; None: nothing is written.
        value: the counter's new value, larger than the old one.

    Raises:
        LaunchError: the arrays differ in dtype or shape, or the counter is not an array of one u32.

    Example:
        >>> import numpy as np
        >>> import tilewright as tw
        >>> shard, inbox = np.ones(4, np.float32), np.zeros((2, 4), np.float32)
        >>> ready = np.zeros(1, np.uint32)
        >>> step = tw.testing.send(shard, inbox[1], ready, 1)
        >>> tw.testing.ranks([[step]]).is_clean, inbox[1].tolist(), int(ready[0])
        (True, [1.0, 1.0, 1.0, 1.0], 1)
    """
    one, other = _described("send", "source", source), _described("send", "target", target)
    if one.dtype != other.dtype or one.shape != other.shape:
        raise LaunchError(
            f"send: the source is {one.dtype} of shape {one.shape}, the target {other.dtype} of shape "
            f"{other.shape}",
            f"a target of {one.dtype} and shape {one.shape}",
        )
    if other.readonly:
        raise LaunchError("send: the target is read-only", "an array that can be written")
    line = _line()
    values = _value("source", one), _value("target", other)
    arrays = dict(zip(values, (host_array(one), host_array(other)), strict=True))
    ops: list[Any] = [Send(*values, location=line)]
    if counter is not None:
        op, array = _counted(Post, "send", counter, value, line)
        ops.append(op)
        arrays[op.counter] = array
    return EngineStep(tuple(ops), arrays, (source, target, counter))


@launches
def post(counter: Any, value: int) -> Step:
    """A step of a rank that sets a counter, after the earlier steps of its stream; see `send`.

    Args:
        counter: an array of one u32.
        value: its new value, larger than the old one.

    Raises:
        LaunchError: the counter is not an array of one u32, or the value is not positive.

    Example:
        >>> import numpy as np
        >>> import tilewright as tw
        >>> free = np.zeros(2, np.uint32)
        >>> tw.testing.ranks([[tw.testing.post(free[1:], 3)]]).is_clean, free.tolist()
        (True, [0, 3])
    """
    op, array = _counted(Post, "post", counter, value, _line())
    return EngineStep((op,), {op.counter: array}, (counter,))


@launches
def hold(counter: Any, value: int) -> Step:
    """A step of a rank that waits until ``counter >= value``; later steps of its stream follow it.

    Args:
        counter: an array of one u32.
        value: the value to wait for.

    Raises:
        LaunchError: the counter is not an array of one u32, or the value is not positive.

    Example:
        >>> import numpy as np
        >>> import tilewright as tw
        >>> ready, x, y = np.zeros(1, np.uint32), np.ones(4, np.float32), np.zeros((2, 4), np.float32)
        >>> first = [tw.testing.send(x, y[0], ready, 1)]
        >>> second = [tw.testing.hold(ready, 1), tw.testing.send(y[0], y[1])]
        >>> tw.testing.ranks([first, second]).is_clean, float(y[1].sum())
        (True, 4.0)
    """
    op, array = _counted(Hold, "hold", counter, value, _line())
    return EngineStep((op,), {op.counter: array}, (counter,))


@launches
def ranks(programs: Sequence[Any], *, resident: int | None = None) -> RanksReport:
    """Run the steps of several ranks in this process under the hazard checker; return its report.

    Each rank has its own arrays, and kernels may take arrays of other ranks: for instance one array whose
    first dimension is the rank.  Steps of one stream run in order.  Everything else runs concurrently, and
    only waits of scope ``"system"`` order two ranks.

    Args:
        programs: for each rank a list of steps, or a list of streams, each a list of steps: `launch`, `send`,
            `post` and `hold`.
        resident: number of blocks of one launch that certainly run at once; default: 132.

    Returns:
        A report of everything that `Bound.check` finds, and between ranks: accesses that no wait orders,
        signals and waits whose scope is one GPU, counters that an earlier call has left at their value, and
        ranks that wait for each other.  ``report.raise_if_any()`` makes findings an error.

    Raises:
        LaunchError: a program is no list of steps or streams, or ``resident`` is less than 1.

    Example:
        >>> import numpy as np
        >>> import tilewright as tw
        >>> @tw.kernel(INBOX="N", READY="R", Y="N")
        ... def doubled(INBOX, READY, Y):
        ...     tw.await_(READY[0], 1, scope="system")
        ...     x = tw.load(INBOX.tile((32,), (0,)).partition((32,)))
        ...     tw.copy(x + x, Y.tile((32,), (0,)))
        >>> shard, inbox, y = (np.full(32, v, np.float32) for v in (3, 0, 0))
        >>> ready = np.zeros(1, np.uint32)
        >>> sender = [tw.testing.send(shard, inbox, ready, 1)]
        >>> report = tw.testing.ranks([sender, [tw.testing.launch(doubled, inbox, ready, y)]])
        >>> print(report)
        2 ranks: no findings
        1 launches ended
        >>> float(y[0])
        6.0
    """
    if not is_sequence(programs) or len(programs) == 0:
        raise LaunchError(f"ranks: programs={shown(programs)}", "a list of steps for each rank")
    if resident is not None and resident < 1:
        raise LaunchError(f"ranks: resident={resident} blocks", "resident=1")
    streams = []
    for rank, program in enumerate(programs):
        steps: list[Any] = list(program) if is_sequence(program) else [None]
        nested = bool(steps) and all(map(is_sequence, steps))
        own: list[list[Step]] = [list(stream) for stream in steps] if nested else [steps]
        for step in (one for stream in own for one in stream):
            if not isinstance(step, KernelStep | EngineStep):
                raise LaunchError(
                    f"ranks: the program of rank {rank} has {shown(program if step is None else step)} as a "
                    "step",
                    "a list of tw.testing.launch(...), send(...), post(...) and hold(...), or a list of "
                    "such lists",
                )
        streams.append(own)
    return run_ranks(streams, resident or RESIDENT)


def _counted(kind: Any, verb: str, counter: Any, value: int, line: Location) -> tuple[Any, Any]:
    """Return an operation on a counter, and the counter's array."""
    info = _described(verb, "counter", counter)
    if info.dtype != u32 or any(extent != 1 for extent in info.shape) or info.readonly:
        near = "an array of one u32 that can be written, for instance counters[1:2] of np.zeros(4, np.uint32)"
        raise LaunchError(f"{verb}: the counter is {info.dtype} of shape {info.shape}", near)
    if not (is_integer(value) and 0 < value < 1 << 32):
        raise LaunchError(f"{verb}: value={shown(value)} of a u32 counter", "value=1")
    return kind(_value("counter", info), int(value), location=line), host_array(info)


def _described(verb: str, name: str, array: Any) -> ArrayInfo:
    try:
        return describe(array)
    except LaunchError as refusal:
        raise LaunchError(f"{verb}: {name}={shown(array)}: {refusal}") from None


def _value(name: str, info: ArrayInfo) -> Value:
    dtype: DType = info.dtype
    return Value(name, TensorType(Memory.GLOBAL, dtype, View.strided(info.shape, info.strides)))


def _line() -> Location:
    """Return the author's line of a step."""
    return Location(here().frames[:1])
