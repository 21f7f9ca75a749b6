"""Replays of calls: if a call is like an earlier one, the same kernels are launched on the new arrays."""

from __future__ import annotations

import inspect
import threading
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import wraps
from operator import add, itemgetter
from typing import Any, NamedTuple, TypeAlias, TypeVar, cast

from tilewright.calls import trim
from tilewright.dtypes import DType
from tilewright.errors import LaunchError
from tilewright.namespaces import part
from tilewright.ops.problem import IMAGINARY
from tilewright.runtime.arrays import LOCATORS, Fresh, current_stream, locate_new, stream_handle
from tilewright.runtime.call_log import CALL_LOG
from tilewright.runtime.executable import Prepared
from tilewright.runtime.frameworks import Device
from tilewright.runtime.plans import RECORDING, Plans, Shortcuts

CallableType = TypeVar("CallableType", bound=Callable[..., Any])

OUT = 2
"""Index of the result among the arrays of most calls: ``a``, ``b``, ``out``, and then others."""

SCRATCH = "tilewright.runtime.gpu_memory:scratch"
"""Allocates scratch memory. Imported when the first launches need it."""

IN_SCRATCH = -1
"""Index of the address of scratch memory, which follows those of the arrays."""


Located: TypeAlias = tuple[Any, Any]
"""Key and address of an array, as `locate` returns them; None and None for an absent array."""


def selector(places: Sequence[int]) -> Callable[[Sequence[Any]], tuple[Any, ...]]:
    """Return a function that selects the values at some places, at least one."""
    return itemgetter(*places) if len(places) > 1 else lambda values: (values[places[0]],)


class ReplayedLaunch(NamedTuple):
    """One launch of a record.

    Args:
        prepared: the launch.
        places: for each array of the kernel its index among the arrays of the call, or `IN_SCRATCH`.
        offsets: bytes to add to the addresses of these arrays; empty if all are 0.
        pick: selects the values at ``places``.
        own: scalar arguments of this launch alone, before those of all launches.
    """

    prepared: Prepared
    places: tuple[int, ...]
    offsets: tuple[int, ...]
    pick: Callable[[Sequence[Any]], tuple[Any, ...]]
    own: tuple[int, ...] = ()

    @classmethod
    def of(
        cls, prepared: Prepared, places: tuple[int, ...], offsets: tuple[int, ...], own: tuple[int, ...] = ()
    ) -> ReplayedLaunch:
        """Make a launch that selects its values by one call into C."""
        return cls(prepared, places, offsets if any(offsets) else (), selector(places), own)


class Clear(NamedTuple):
    """Two arrays of a call that must not share memory.

    Args:
        stored: index of the array that the kernels write.
        other: index of the other array.
        before: they share memory if ``before < address of stored - address of other < after``, in bytes.
        after: the upper limit.
        in_place: whether both may be one array, element for element.
    """

    stored: int
    other: int
    before: int
    after: int
    in_place: bool


@dataclass(eq=False, slots=True)
class Replay:
    """The launches of a call, for other arrays of the same metadata.

    Args:
        launches: the launches, in order.
        clear: pairs of the caller's arrays that must not share memory.
        fresh: allocates the results that the caller did not pass, with their indices.
        device: the device of the arrays.
        scratch_bytes: bytes of scratch memory that the launches share.
        numbers: scalar arguments of the kernels; empty if each call passes them.
        room: a None for each new result that is appended to the arrays of the call.
        last_numbers: the numbers that the last call passed.
        takes_more: whether the numbers of each call follow those of the record.
    """

    launches: tuple[ReplayedLaunch, ...]
    clear: tuple[Clear, ...]
    fresh: tuple[tuple[int, Fresh], ...]
    device: Device
    scratch_bytes: int = 0
    numbers: tuple[float | int, ...] = ()
    room: tuple[None, ...] = ()
    last_numbers: tuple[Any, ...] = ()
    takes_more: bool = False

    @property
    def prepared_launches(self) -> tuple[Prepared, ...]:
        """The prepared launches, in order."""
        return tuple(one.prepared for one in self.launches)

    def run(
        self, arrays: Sequence[Any], at: Sequence[Any], numbers: tuple[Any, ...], stream: Any
    ) -> Sequence[Any] | None:
        """Launch on other arrays, or return None without a launch if the call needs a new plan.

        Args:
            arrays: the arrays of the call; None for an absent one.
            at: their addresses.
            numbers: scalar arguments of the kernels, unless the record has them.
            stream: the caller's stream.

        Returns:
            The arrays of the call, with those allocated for it.
        """
        if self.fresh:
            arrays, at = [*arrays, *self.room], [*at, *self.room]
            for place, maker in self.fresh:
                arrays[place] = made = maker.make()
                at[place] = address = maker.address(made)
                if address & 15:  # the kernels were compiled for multiples of 16
                    return None
        # Interleaved arrays may share no element all the same; a new plan checks them exactly.
        for stored, other, before, after, in_place in self.clear:
            apart = at[stored] - at[other]
            if before < apart < after and (apart or not in_place):
                return None
        numbers = (*self.numbers, *numbers) if self.takes_more else self.numbers or numbers
        pointers: Sequence[int]
        if len(self.launches) == 1:
            prepared, _, offsets, pick, own = self.launches[0]
            pointers = pick(at)
            if offsets:
                pointers = (*map(add, pointers, offsets),)
            # A kernel ignores numbers beyond its parameters.
            prepared.launch((*pick(arrays), *own, *numbers), pointers, stream)
            return arrays
        # The values of a whole call are not only arrays.
        read = [arrays[at] for one in self.launches for at in one.places if at >= 0]
        handle, stream = stream_on(self.device, read, stream)
        with part(SCRATCH)(self.scratch_bytes or 1, self.device, handle) as start:
            addresses = (*at, start)  # `IN_SCRATCH` is the last one
            for prepared, _, offsets, pick, own in self.launches:
                pointers = pick(addresses)
                if offsets:
                    pointers = (*map(add, pointers, offsets),)
                prepared.launch((*pointers, *own, *numbers), pointers, stream)
        return arrays


if CALL_LOG is not None:

    def _noted(replay: Replay, *args: Any, **kwargs: Any) -> Sequence[Any] | None:
        """Run a replay, and tell the log of its kernels."""
        found = _run(replay, *args, **kwargs)
        if found is not None and CALL_LOG is not None:
            CALL_LOG.note((one.executable for one in replay.prepared_launches), replayed=True)
        return found

    _run = Replay.run
    Replay.run = _noted  # type: ignore[method-assign, assignment]


class Done(NamedTuple):
    """The outcome of a launched call.

    Args:
        result: the value that the call returns.
        record: replays it on arrays of the same metadata; None if the target has no replays.
        passed_on: whether another operation did all the work, so that its replay is one of this call.
        plan: the plan of the launches.
    """

    result: Any
    record: Replay | None
    passed_on: bool = False
    plan: Any = None


def stream_on(device: Device, arrays: Sequence[Any], stream: Any) -> tuple[int, Any]:
    """Return the handle of a call's stream, and the stream argument of its launches.

    A host has no streams: the handle is 0, and the launch refuses the caller's stream.

    Args:
        device: the device of the arrays.
        arrays: the arrays of the call; None for an absent one.
        stream: the caller's stream; None: the framework's current stream.

    Raises:
        LaunchError: ``stream`` is not a stream.
    """
    if isinstance(device, str):
        return 0, stream
    there = [one for one in arrays if one is not None]
    handle = current_stream(device, there) if stream is None else stream_handle(stream)
    return handle, handle


def called(
    plans: Plans[Replay],
    arrays: Sequence[Any],
    words: tuple[Any, ...] | None,
    numbers: tuple[Any, ...],
    stream: Any,
    first: Callable[[Sequence[Located]], Done],
    picked: Callable[[Sequence[Any]], Any] = itemgetter(OUT),
) -> Any:
    """Replay an earlier call of the same kind, or plan a new one; return the result.

    Args:
        plans: the recorded launches of the operation.
        arrays: the arrays of the call; None for an absent one. The framework of the first allocates results.
        words: the arguments that a plan depends on besides arrays; None: plan each call anew.
        numbers: scalar arguments of the kernel, unless the plan has them.
        stream: the caller's stream.
        first: checks, plans and launches a new call; takes the arrays' keys and addresses, or nothing.
        picked: selects the result among the arrays of the call.
    """
    if (recording := _of_thread.recorded) is not None:
        done = first(())
        if not done.passed_on:
            recording.append(RecordedCall(done.plan, done.record, arrays, numbers))
        return done.result
    key: tuple[Any, ...] | None = None
    keys: list[Any] = [type(arrays[0]), words]
    at: list[Any] = []
    if words is not None:
        try:
            for array in arrays:
                if array is None:
                    keys.append(None)
                    at.append(None)
                else:
                    exact, address = LOCATORS.get(type(array), locate_new)(array, 0)
                    keys.append(exact)
                    at.append(address)
            key = tuple(keys)
            known = plans.find(key)
        except (LaunchError, TypeError, ValueError):  # not an array, or not hashable: `first` raises
            key = known = None
        if known is not None:
            found = known.run(arrays, at, numbers, stream)
            if found is not None:
                if RECORDING.launches is not None:  # lists have their own record
                    RECORDING.launches.append((known, found, numbers) if type(known) is Replay else None)
                repeats, known.last_numbers = known.last_numbers == numbers, numbers
                if _of_thread.notes is not None and type(known) is Replay:
                    noted = Replayed(known, found, keys[2:], numbers, picked, repeats, plans.names)
                    _of_thread.notes[:] = [noted]
                return picked(found)
    result, record, passed_on, _ = first([*zip(keys[2:], at, strict=True)] if key is not None else ())
    if _of_thread.notes and not passed_on:
        _of_thread.notes.clear()  # an inner call was replayed
    if RECORDING.launches is not None and not passed_on:
        RECORDING.launches.append(None)
    if key is not None and record is not None:
        record.last_numbers = numbers
        plans.keep(key, record)
    return result


# ---------------------------------------------------------------- calls that are only recorded


class RecordedCall(NamedTuple):
    """A call that was planned and compiled, but not launched.

    Args:
        plan: the plan of its launches.
        record: its launches; None if there is nothing to compute, or if the target has no replays.
        arrays: the arrays of the call; None for an absent one.
        numbers: the scalar arguments of the call.
    """

    plan: Any
    record: Replay | None
    arrays: Sequence[Any]
    numbers: tuple[Any, ...]

    def arguments(self, launch: ReplayedLaunch) -> tuple[Any, ...]:
        """Return the arguments of a launch: None for each of its arrays, and its numbers.

        Args:
            launch: one of the record.
        """
        assert self.record is not None, "there is a launch"
        fixed = self.record.numbers
        numbers = (*fixed, *self.numbers) if self.record.takes_more else fixed or self.numbers
        return *(None,) * len(launch.places), *launch.own, *numbers


class _OfThread(threading.local):
    """State of one thread: whether it records its calls instead of launching them, and its notes."""

    recorded: list[RecordedCall] | None = None
    """The calls recorded so far; None: calls are launched."""

    notes: list[Replayed] | None = None
    """A list for the call that `called` replays next, or None."""


_of_thread = _OfThread()


def is_recorded() -> bool:
    """Whether calls of this thread are recorded, and not launched."""
    return _of_thread.recorded is not None


_tables: list[Plans[Any] | Shortcuts] = []
"""The tables by which `repeated` finds whole calls."""


def recorded_calls(operation: Callable[..., Any], *args: Any, **kwargs: Any) -> list[RecordedCall]:
    """Plan and compile a call of an operation without a launch.

    Whole calls that were kept for a replay are forgotten: a replay inside of the operation would launch.

    Args:
        operation: the operation, or a function that calls operations.
        args: its arguments; arrays are only described.
        kwargs: its other arguments.

    Returns:
        The calls that launch kernels, in order.
    """
    for table in _tables:
        table.forget()
    before, _of_thread.recorded = _of_thread.recorded, []
    try:
        inspect.unwrap(operation)(*args, **kwargs)
        return _of_thread.recorded
    finally:
        _of_thread.recorded = before


# ---------------------------------------------------------------- whole calls
#
# `called` finds a plan after the operation has checked and sorted its arguments, which takes longer than the
# launch. A call that repeats an earlier one in everything but the addresses of its arrays is found before.


class Replayed(NamedTuple):
    """A call that `called` replayed.

    Args:
        record: the replay.
        arrays: the arrays of the call, and those allocated for it.
        keys: the keys of the arrays of the call.
        numbers: scalar arguments of the kernels.
        picked: selects the result among the arrays.
        repeats: whether the last call of this record passed the same numbers.
        names: the argument of each array of the call.
    """

    record: Replay
    arrays: Sequence[Any]
    keys: Sequence[Any]
    numbers: tuple[Any, ...]
    picked: Callable[[Sequence[Any]], Any]
    repeats: bool
    names: Sequence[str]


MOST_CHANGES = 128
"""Most calls of one form, with new numbers, that wait for a repetition; beyond it the form keeps no calls."""

MOST_MISSES = 16
"""Most calls of one form whose kernels take other arrays than the call; beyond it the form keeps no calls."""

MOST_FORMS = 256
"""Most forms of calls of one operation; one more clears the table."""

MOST_SAID = 16
"""Most combinations of constant arguments with shortcuts of their own; one more clears them all."""

PLAIN: dict[type, Callable[[Any], Any] | None] = {
    **dict.fromkeys((type(None), bool, int, str, DType)),
    float: float.hex,
    complex: repr,
}
"""Types of immutable arguments, each with a function of the part of a key; None: the value itself.

Zeros of different signs are equal, so floats are spelled.
"""


class Container(NamedTuple):
    """An argument that holds several values.

    Args:
        parts: returns them.
        names: names of the values; ``{}`` is the name of the argument.
    """

    parts: Callable[[Any], tuple[Any, ...]]
    names: tuple[str, ...]


PAIR = Container(tuple, ("{}", "{}" + IMAGINARY))
"""A pair of planes, or a tuple of numbers."""

CONTAINERS: dict[type, Container] = {tuple: PAIR, list: PAIR}
"""Types of arguments that hold several values."""


class CallForm:
    """Calls whose arguments have the same names and types.

    Args:
        names: the names of the arguments.
        values: their values.
    """

    def __init__(self, names: Sequence[str], values: tuple[Any, ...]) -> None:
        self.names, self.parts = [*names], list[tuple[int, Container, tuple[type, ...]]]()
        for place, value in enumerate(values):
            if (container := CONTAINERS.get(type(value))) is not None:
                found = container.parts(value)
                named = [name.format(names[place]) for name in container.names]
                self.names += [*named, *[names[place]] * len(found)][: len(found)]
                self.parts.append((place, container, tuple(map(type, found))))
                values = (*values, *found)
        whole = {place for place, *_ in self.parts}
        there = [
            (at, type(one))
            for at, one in enumerate(values)
            if one is not None and at not in whole and self.names[at] != "stream"
        ]
        self.arrays = [(at, LOCATORS[kind]) for at, kind in there if kind in LOCATORS]
        plain = [(at, kind) for at, kind in there if kind not in LOCATORS]
        self.is_kept, self.is_found = all(kind in PLAIN for _, kind in plain), False
        self.plain = [(at, PLAIN.get(kind)) for at, kind in plain]
        places = {self.names[at]: at for at, _ in self.arrays}
        pairs = [(places.get(f"c{part}"), places.get(f"out{part}")) for part in ("", IMAGINARY)]
        self.updates = [(c, out) for c, out in pairs if c is not None and out is not None]
        self.changes, self.misses = set[Hashable](), 0

    def read(self, values: tuple[Any, ...]) -> tuple[tuple[Any, ...], tuple[Any, ...], list[Any]]:
        """Return a key of everything but the addresses of arrays, all values, and these with the addresses.

        Raises:
            TypeError: a part of a value has another type than in the first call.
        """
        for place, container, kinds in self.parts:
            found = container.parts(values[place])
            if (*map(type, found),) != kinds:
                raise TypeError
            values = (*values, *found)
        key: list[Any] = [self]
        at = [*values]
        for place, locate in self.arrays:
            exact, at[place] = locate(values[place], 0)
            key.append(exact)
        for place, spelled in self.plain:
            key.append(values[place] if spelled is None else spelled(values[place]))
        for c, out in self.updates:
            key.append(values[c] is values[out])
        return tuple(key), values, at


class WholeCall(NamedTuple):
    """A replay of a whole call.

    Args:
        replay: the launches; their array indices refer to the arguments of the call.
        result: selects the result among the arguments and the new results.
        shortcuts: the table to which the call is added again after it was dropped.
    """

    replay: Replay
    result: Callable[[Sequence[Any]], Any]
    shortcuts: Shortcuts | None = None

    @property
    def prepared_launches(self) -> tuple[Prepared, ...]:
        """The prepared launches, in order."""
        return self.replay.prepared_launches

    @staticmethod
    def of(
        form: CallForm, done: Replayed, key: Sequence[Any], values: Sequence[Any], result: Any
    ) -> WholeCall | None:
        """Make the replay of a call; None if its arrays or its result are not those of the arguments.

        Args:
            form: the form of the call.
            done: the call.
            key: the key of the call.
            values: the values of the arguments.
            result: the result of the call.
        """
        record, names = done.record, done.names
        order = {at: len(values) + number for number, (at, _) in enumerate(record.fresh)}
        for (place, _), exact in zip(form.arrays, key[1:], strict=False):
            at = names.index(form.names[place]) if form.names[place] in names else -1
            if at < 0 or done.arrays[at] is not values[place] or done.keys[at] != exact:
                return None
            order[at] = place
        places = [order.get(at) for at in range(len(done.arrays))]
        if any((one is None) != (place is None) for one, place in zip(done.arrays, places, strict=True)):
            return None
        there = [*values, *(done.arrays[at] for at, _ in record.fresh)]
        chosen, parts = done.picked(places), result if isinstance(result, tuple) else (result,)
        picked = (chosen,) if isinstance(chosen, int) else chosen[: len(parts)]
        if "out" in form.names and there[form.names.index("out")] is result:
            picked, parts = (form.names.index("out"),), (result,)
        if any(there[place] is not part for place, part in zip(picked, parts, strict=True)):
            return None
        launches = tuple(
            ReplayedLaunch.of(
                one.prepared, tuple(order.get(at, at) for at in one.places), one.offsets, one.own
            )
            for one in record.launches
        )
        clear = (one._replace(stored=order[one.stored], other=order[one.other]) for one in record.clear)
        made = replace(
            record,
            launches=launches,
            clear=tuple(clear),
            fresh=tuple((order[at], maker) for at, maker in record.fresh),
            numbers=(*record.numbers, *done.numbers) if record.takes_more else record.numbers or done.numbers,
            takes_more=False,
            room=(None,) * len(record.fresh),
        )
        # A tuple of one result stays a tuple.
        of_result = selector(picked) if isinstance(result, tuple) else itemgetter(picked[0])
        return WholeCall(made, of_result)


def is_text(value: object) -> bool:
    """Whether a value is exactly a `str`, which equals only the same text."""
    return type(value) is str


def repeated(
    plans: Plans[Any], names: Sequence[str], of_shortcuts: Shortcuts | None = None
) -> Callable[[CallableType], CallableType]:
    """Decorate an operation: a call that repeats an earlier one is replayed at once.

    A key has the names and types of all arguments, the metadata of each array, and each other value except
    the stream.

    Args:
        plans: the recorded launches of the operation.
        names: the argument of each array that the operation passes to `called`.
        of_shortcuts: compiled launches of calls that pass nothing but the arrays of the positional
            parameters. Calls that also pass the same texts, e.g. ``target="cpu"``, have shortcuts of their
            own.
    """

    def decorate(function: CallableType) -> CallableType:
        shortcuts = of_shortcuts if CALL_LOG is None else None  # compiled code writes no log
        inner: Any = inspect.unwrap(function)
        positional = inner.__code__.co_varnames[: inner.__code__.co_argcount]
        inputs = len(positional) - 1  # the last one is the result
        forms: dict[Hashable, CallForm] = plans.forms
        plans.names = names
        said = {} if shortcuts is None else shortcuts.said
        _tables.extend(one for one in (plans, shortcuts) if one is not None)

        def shortcuts_of(args: Sequence[Any], kwargs: Mapping[str, Any]) -> Shortcuts | None:
            """Return the shortcuts of calls with the same texts; None if there can be none."""
            texts = tuple(value for name, value in kwargs.items() if name != "out")
            given = (*positional[: len(args)], *(("out",) if "out" in kwargs else ()))
            if given != positional[: len(given)] or not all(map(is_text, texts)):
                return None
            if shortcuts is None or not texts:
                return shortcuts
            if sum(map(len, said.values())) >= MOST_SAID:
                said.clear()
            return said.setdefault((*kwargs,), {}).setdefault(texts, Shortcuts())

        def keep(
            done: Replayed,
            kinds: tuple[Any, ...],
            args: Sequence[Any],
            kwargs: Mapping[str, Any],
            result: Any,
        ) -> None:
            form, values = forms.get(kinds), (*args, *kwargs.values())
            if form is None:
                if len(forms) >= MOST_FORMS:
                    forms.clear()
                form = forms[kinds] = CallForm((*positional[: len(args)], *kwargs), values)
            if not form.is_kept:
                return
            try:
                key, values, _ = form.read(values)
            except (LaunchError, TypeError, ValueError):  # other types of parts than in the first call
                return
            if not done.repeats and key not in form.changes:
                form.changes.add(key)
                form.is_kept = len(form.changes) <= MOST_CHANGES
                return
            form.changes.discard(key)
            whole = WholeCall.of(form, done, key, values, result)
            if whole is None:  # another call of the form may still be kept
                form.misses += 1
                form.is_kept = form.misses <= MOST_MISSES
                return
            kept, launches = None, whole.prepared_launches
            if len(launches) == 1 and launches[0].may_be_inlined:  # compiled code may run it
                places = {place for place, _ in form.arrays} | {place for place, _ in whole.replay.fresh}
                if places == {*whole.replay.launches[0].places}:
                    kept = shortcuts_of(args, kwargs)
            if kept is not None:
                whole = whole._replace(shortcuts=kept)
                fresh = (done.arrays[at] for at, _ in done.record.fresh)
                remember(kept, whole.replay, (*values, *fresh))
            form.is_found = True  # stays True if the form keeps no more calls
            plans.keep_call(key, whole)

        @wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            values = (*args, *kwargs.values()) if kwargs else args
            known: WholeCall | None = None
            at: Sequence[Any] = ()
            try:
                if shortcuts is not None:
                    found = None
                    if not kwargs or (len(kwargs) == 1 and "out" in kwargs and len(args) == inputs):
                        found = shortcuts.call(*values)
                    elif (tables := said.get((*kwargs,))) is not None:
                        texts, arrays = (*kwargs.values(),), args
                        if "out" in kwargs:
                            at_out = [*kwargs].index("out")
                            texts, arrays = texts[:at_out] + texts[at_out + 1 :], (*args, texts[at_out])
                        is_whole = len(args) == inputs or arrays is args
                        kept = tables.get(texts) if is_whole and all(map(is_text, texts)) else None
                        if kept is not None:
                            found = kept.call(*arrays)
                    if found is not None:
                        return found
                kinds = (*kwargs, *map(type, values))
                form = forms.get(kinds)
                if form is not None and (form.is_kept or form.is_found):
                    try:
                        key, values, at = form.read(values)
                        known = plans.find_call(key)
                    except (LaunchError, TypeError, ValueError):  # the operation says what is wrong
                        pass
                if known is not None:
                    found = known.replay.run(values, at, (), kwargs.get("stream"))
                    if found is not None:
                        if RECORDING.launches is not None:
                            RECORDING.launches.append((known.replay, found, ()))
                        if known.shortcuts is not None:
                            remember(known.shortcuts, known.replay, found)
                        return known.result(found)
                notes: list[Replayed] | None = [] if form is None or form.is_kept else None
                before, _of_thread.notes = _of_thread.notes, notes
                try:
                    result = function(*args, **kwargs)
                finally:
                    _of_thread.notes = before
                if notes:
                    keep(notes[0], kinds, args, kwargs, result)
                return result
            except Exception as error:
                trim(error)
                raise

        return cast(CallableType, call if CALL_LOG is None else CALL_LOG.logged(call, function))

    return decorate


def remember(shortcuts: Shortcuts, record: Replay, arrays: Sequence[Any]) -> None:
    """Keep a shortcut of a call, if it has only one launch.

    Args:
        shortcuts: the compiled launches.
        record: the replay of the call.
        arrays: the arrays of the call, and its texts, which are left out; the last array is the result.
    """
    if len(record.launches) == 1:
        prepared, places, offsets, _, own = record.launches[0]
        given = [at for at, one in enumerate(arrays) if not is_text(one)]
        order = [given.index(place) for place in places]
        addresses = [*zip(order, offsets or [0] * len(order), strict=True)]
        there, fresh = [arrays[at] for at in given], bool(record.fresh)
        shortcuts.keep(prepared, there, addresses, (*own, *record.numbers), fresh=fresh)
