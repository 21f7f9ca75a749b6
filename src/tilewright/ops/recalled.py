"""Launching a call again, on other arrays that are like those of a call that was launched before."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from operator import add, itemgetter
from typing import Any, ClassVar, NamedTuple

from tilewright.errors import LaunchError
from tilewright.namespaces import part
from tilewright.runtime.arrays import LOCATORS, current_stream, locate_new, stream_handle
from tilewright.runtime.executable import Executable, Prepared
from tilewright.runtime.frameworks import Device
from tilewright.runtime.plans import Plan, Plans

OUT = 2
"""The place of the result among the arrays of most calls: ``a``, ``b``, ``out``, and then others."""


class Done(NamedTuple):
    """A call that was launched.

    Args:
        out: the result.
        plan: what launches it again on arrays like these; None if nothing can.
    """

    out: Any
    plan: Plan | None


def located(arrays: Iterable[Any]) -> tuple[list[Any], list[Any]]:
    """All that a plan depends on of arrays but their addresses, and the addresses.

    Args:
        arrays: of a call, in an order of its own; None for one that is not given.

    Raises:
        LaunchError: something is no array.
    """
    keys, at = list[Any](), list[Any]()
    for array in arrays:
        key, address = (None, None) if array is None else LOCATORS.get(type(array), locate_new)(array, 0)
        keys.append(key)
        at.append(address)
    return keys, at


def order_of(names: Iterable[str], call: Sequence[str], given: Collection[str]) -> tuple[int, ...]:
    """Which of a call's arrays each array of a kernel is; ``out`` stands for what is not given.

    Example:
        >>> order_of(("a", "b", "bias", "out"), ("a", "b", "out", "bias"), ("a", "b"))
        (0, 1, 2, 2)
    """
    return tuple(call.index(name if name in given else "out") for name in names)


def again(
    plan: Plan, arrays: Sequence[Any], at: Sequence[Any], numbers: tuple[Any, ...], stream: Any
) -> Sequence[Any] | None:
    """Launch what is known on other arrays; None, and nothing is done, if that cannot be.

    Args:
        plan: the launch.
        arrays: those of the call; None for one that is not given.
        at: their addresses.
        numbers: the kernel's arguments behind its arrays, if the plan does not have them.
        stream: the caller's.

    Returns:
        The arrays of the call, with those that were made for it.
    """
    if plan.fresh:
        arrays, at = [*arrays], [*at]
        for place, maker in plan.fresh:
            arrays[place] = made = maker.make()
            at[place] = address = maker.address(made)
            if address & 15:  # not as its kernel was told
                return None
    pointers = [at[place] for place in plan.order]
    if plan.offsets:
        pointers = [*map(add, pointers, plan.offsets)]
    if not plan.apart(pointers):
        return None
    # A kernel takes as many of the numbers as it has.
    plan.prepared.launch(
        (*[arrays[place] for place in plan.order], *(plan.numbers or numbers)), pointers, stream
    )
    return arrays


def called(
    plans: Plans,
    arrays: Sequence[Any],
    words: Sequence[Any] | None,
    numbers: tuple[Any, ...],
    stream: Any,
    anew: Callable[[], Done],
    picked: Callable[[Sequence[Any]], Any] = itemgetter(OUT),
) -> Any:
    """The result of a call, which is launched again if one like it is known, and planned otherwise.

    Args:
        plans: of the operation, by all that they depend on.
        arrays: those of the call, the first of which says of what framework new ones are; None for one that
            is not given.
        words: what a plan depends on besides arrays; None if it is to be made anew each time.
        numbers: the kernel's arguments behind its arrays, if the plan does not have them.
        stream: the caller's.
        anew: launches it with everything looked at.
        picked: the result, of the arrays of the call.
    """
    key = plan = None
    at: Sequence[Any] = ()
    if words is not None:
        try:
            keys, at = located(arrays)
            key = (type(arrays[0]), *keys, *words)
            plan = plans.find(key)
        except (LaunchError, TypeError, ValueError):  # what is no array, or has no hash: who plans says which
            key = None
        if plan is not None and (found := again(plan, arrays, at, numbers, stream)) is not None:
            return picked(found)
    made = anew()
    if key is not None and made.plan is not None:
        plans.keep(key, made.plan)
    return made.out


# ---------------------------------------------------------------- several launches

SCRATCH = "tilewright.runtime.gpu_memory:scratch"
"""What gives memory to launches; loaded when the first of them need any."""

OWN = -1
"""In the place of an array: memory that the launches have for themselves."""


class Place(NamedTuple):
    """Where an array of one of several launches lies.

    Args:
        array: in which array of the call, or `OWN`.
        offset: bytes behind its address.
    """

    array: int
    offset: int = 0


class Behind(NamedTuple):
    """One of several launches.

    Args:
        prepared: the launch.
        places: of its arrays, in order.
    """

    prepared: Prepared
    places: tuple[Place, ...]


def stream_on(device: Device, arrays: Sequence[Any], stream: Any) -> tuple[int, Any]:
    """The handle of the stream that a call runs on, and the stream that each of its launches is given.

    A host has no streams: the handle is 0, and the launch refuses the caller's stream.

    Args:
        device: where the arrays lie.
        arrays: those of the call.
        stream: the caller's; None: the framework's current one.

    Raises:
        LaunchError: the caller's is no stream.
    """
    if isinstance(device, str):
        return 0, stream
    handle = current_stream(device, arrays) if stream is None else stream_handle(stream)
    return handle, handle


class Several:
    """Launches one behind the other, of which the first leave something in memory of their own for the last.

    Args:
        launches: in order; the last one is the product.
        device: where the arrays lie.
        size_bytes: of scratch memory; 0: none of them needs any.
    """

    may_be_inlined: ClassVar[bool] = False

    def __init__(self, launches: Sequence[Behind], device: Device, size_bytes: int = 0) -> None:
        self.launches, self.device, self.size_bytes = tuple(launches), device, size_bytes
        self.recent, self.seen = True, 0

    @property
    def executable(self) -> Executable:
        """What multiplies."""
        return self.launches[-1].prepared.executable

    def inline(self) -> None:
        """It is several launches."""

    def launch(self, arguments: Sequence[Any], pointers: Sequence[int], stream: Any) -> None:
        """Launch all, with the arrays of a call and the numbers behind them."""
        self.recent = True
        count = len(pointers)
        arrays, numbers = arguments[:count], arguments[count:]
        handle, own = stream_on(self.device, arrays, stream)
        if not self.size_bytes:
            self._start(pointers, numbers, own)
            return
        with part(SCRATCH)(self.size_bytes, self.device, handle) as start:
            self._start((*pointers, start), numbers, own)

    def _start(self, addresses: Sequence[int], numbers: Sequence[Any], stream: Any) -> None:
        """Launch all on arrays at some addresses; behind these is that of their own memory."""
        for prepared, places in self.launches:
            pointers = [addresses[place] + offset for place, offset in places]
            prepared.launch((*pointers, *numbers), pointers, stream)
