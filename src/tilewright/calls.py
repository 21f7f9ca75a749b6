"""The wrapper of every public function, which checks arguments and trims the tracebacks of errors.

The annotations of a signature declare the checks. The first call turns each annotation into an
`ArgumentRule`: the legal values in words, and a test for a value. A call that breaks a rule raises the error
class of its package before anything happens. The message names the function, the parameter, the value and the
legal values. A number has a limit only if larger numbers would run for ever; the limit comes with its reason.

An error that a user can fix is about the user's line, and the package's own frames rarely help. So public
functions cut them: `trim` in an ``except`` block, then a bare ``raise``, which adds no frame. The variable
`TILEWRIGHT_TRACEBACK` (see `tilewright.runtime.environment`) keeps all frames, and so does
``error.full_traceback``.
"""

from __future__ import annotations

import functools
import inspect
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any, NamedTuple, TypeVar, cast, overload

from tilewright.argument_checks import (
    ANYTHING,
    CLASSES,
    ArgumentRule,
    is_sequence,
    is_whole,
    is_wide,
    read,
    read_exactly,
)
from tilewright.errors import LaunchError, LayoutError, SignatureError, close_to, shown

PACKAGE = str(Path(__file__).parent) + os.sep

WANTS_ALL: list[Callable[[], bool]] = []
"""Functions that return whether the user wants whole tracebacks; `tilewright.runtime.environment` adds one.
"""


def trim(error: BaseException) -> None:
    """Cut the frames of the package out of the traceback of an error.

    A cause or context that the package raised itself is dropped too.
    """
    if not getattr(error, "of_users", False) or any(wanted() for wanted in WANTS_ALL):
        return
    error.full_traceback = _whole(error)  # type: ignore[attr-defined]
    error.__traceback__ = _of_users(error.__traceback__)
    origin = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    if origin is None:
        return
    if _of_users(origin.__traceback__) is None:
        error.__cause__ = None  # which hides the context too
    else:
        origin.__traceback__ = _of_users(origin.__traceback__)


def mark(error: BaseException) -> None:
    """Mark an error of any class that was raised in user code called by the package, for `trim`."""
    *_, last = _entries(error.__traceback__)
    if not is_ours(last.tb_frame):
        error.of_users = True  # type: ignore[attr-defined]


def is_ours(frame: FrameType) -> bool:
    """Return whether a frame executes a function of this package."""
    file = frame.f_code.co_filename
    # Generated methods of dataclasses have no file, but the module of their class.
    return file.startswith(PACKAGE) or (
        file == "<string>" and str(frame.f_globals.get("__name__")).startswith("tilewright.")
    )


def _whole(error: BaseException) -> TracebackType | None:
    """Return the traceback of an error with the frames that inner public functions cut out."""
    now = list(_entries(error.__traceback__))
    before = list(_entries(getattr(error, "full_traceback", None)))
    kept = sum(not is_ours(part.tb_frame) for part in before)
    return _joined([*now[: len(now) - kept], *before])


def _of_users(chain: TracebackType | None) -> TracebackType | None:
    """Return the traceback without the frames of the package."""
    return _joined([part for part in _entries(chain) if not is_ours(part.tb_frame)])


def _entries(chain: TracebackType | None) -> Iterator[TracebackType]:
    """Return the entries of a traceback, the outermost first."""
    while chain is not None:
        yield chain
        chain = chain.tb_next


def _joined(parts: list[TracebackType]) -> TracebackType | None:
    """Return a new traceback of these entries; the entries themselves do not change."""
    made: TracebackType | None = None
    for part in reversed(parts):
        made = TracebackType(made, part.tb_frame, part.tb_lasti, part.tb_lineno)
    return made


CallableType = TypeVar("CallableType", bound=Callable[..., Any])

ClassType = TypeVar("ClassType", bound=type)


class Most(NamedTuple):
    """The largest number that a parameter accepts, and the reason."""

    limit: int
    reason: str


class Signature:
    """The parameters of one function, with their checks.

    Args:
        function: the function.
        most: the largest number for some of its parameters.
        called: its name in messages; default: its own name.
        made_by: for a class whose objects the library makes: the call that makes one.
    """

    def __init__(
        self, function: Callable[..., Any], most: Mapping[str, Most], called: str = "", made_by: str = ""
    ) -> None:
        code = function.__code__
        count, only = code.co_argcount, code.co_kwonlyargcount
        self.function = function
        self.called = called or calling(function)
        self.made_by = made_by
        self.most = most
        self.positional = code.co_varnames[:count]
        self.names = code.co_varnames[: count + only]
        self.rest = code.co_varnames[count + only] if code.co_flags & inspect.CO_VARARGS else None
        self.open = bool(code.co_flags & inspect.CO_VARKEYWORDS)
        self.kinds: dict[str, ArgumentRule] | None = None
        self.checks: tuple[tuple[int, Callable[[Any], bool]], ...] = ()
        self.legal: dict[str, Any] = {}
        """The last legal value of each keyword, if it is immutable."""

    def resolve(self) -> None:
        """Read the annotations at the first call, because they may name classes defined later in the file."""
        texts = {name: text for name, text in self.function.__annotations__.items() if name != "return"}
        scope = self.function.__globals__
        kinds = {name: read(text, scope) for name, text in texts.items() if isinstance(text, str)}
        self.kinds = {name: self._limited(name, kind) for name, kind in kinds.items() if kind is not ANYTHING}
        named = enumerate(self.positional)
        self.checks = tuple((at, self.kinds[name].holds) for at, name in named if name in self.kinds)

    def _limited(self, name: str, kind: ArgumentRule) -> ArgumentRule:
        if name not in self.most:
            return kind
        limit, reason = self.most[name]
        return kind._replace(
            words=f"{kind.words}, at most {limit}: {reason}",
            holds=lambda value: kind.holds(value) and _within(value, limit),
            near=lambda value: _clipped(kind.near(value), limit),
        )

    def wrong(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> tuple[str, Any] | None:
        """Return the first parameter with an illegal value, and the value."""
        if self.kinds is None:
            self.resolve()
        kinds = self.kinds or {}
        for at, check in self.checks:
            if at >= len(args):
                break
            if not check(args[at]):
                return self.positional[at], args[at]
        if self.rest is not None and self.rest in kinds:
            check = kinds[self.rest].holds
            for value in args[len(self.positional) :]:
                if not check(value):
                    return self.rest, value
        legal = self.legal
        for name, value in kwargs.items():
            if legal.get(name, legal) is value:  # `replace` passes most fields unchanged
                continue
            kind = kinds.get(name)
            if kind is not None:
                if not kind.holds(value):
                    return name, value
                if is_constant(value):
                    legal[name] = value
        return None

    def refusal(self, name: str, value: Any) -> str:
        """Return the error message for an illegal value."""
        kind = (self.kinds or {})[name]
        what = f"{self.called}({name}={shown(value)}): {name} must be {kind.words}"
        if is_wide(value) and kind.holds(0.5):
            what = f"{what}; an integer of more than 64 bits is given as a float"
        if self.made_by:
            return f"{what}; {self.called} is made by the library: {self.made_by}"
        near = kind.near(value)
        nearest = kind.nearest if near is None or kind.holds(near) is False else f"{name}={near}"
        own = getattr(type(value), "_instead_of", {})  # a tile has methods in place of functions of fragments
        nearest = own.get(self.called, nearest) if isinstance(own, Mapping) else nearest
        return what + (f"; nearest legal choice: {nearest}" if nearest else "")

    def unknown(self, kwargs: Iterable[str]) -> str | None:
        """Return the error message for an unknown keyword; None if all are known."""
        extra = [] if self.open else [name for name in kwargs if name not in self.names]
        if not extra:
            return None
        names = [name for name in self.names if name != "self"]
        return (
            f"{self.called}() has no parameter {extra[0]!r}, only {', '.join(names) or 'none'}"
            f"{close_to(extra[0], names)}"
        )


_CONSTANTS = frozenset({int, bool, float, str, bytes, type(None)})


def is_constant(value: object) -> bool:
    """Return whether a value is immutable: a plain number or text, or a tuple of these.

    Example:
        >>> is_constant((1, "a", (2.5, None))), is_constant(([1], 2))
        (True, False)
    """
    if type(value) is not tuple:
        return type(value) in _CONSTANTS
    waiting = [value]  # no recursion: tuples may be nested deeply
    while waiting:
        for one in waiting.pop():
            if type(one) is tuple:
                waiting.append(one)
            elif type(one) not in _CONSTANTS:
                return False
    return True


def is_hashable(value: object) -> bool:
    """Return whether a value can be a key of a dictionary.

    Example:
        >>> is_hashable((1, 2)), is_hashable([1, 2])
        (True, False)
    """
    try:
        hash(value)
    except Exception:  # noqa: BLE001 a user's `__hash__` may raise anything
        return False
    return True


def _clipped(value: Any, limit: int) -> Any:
    """Return the value with each integer clipped to the limit."""
    if isinstance(value, tuple):
        return tuple(_clipped(part, limit) for part in value)
    return min(value, limit) if is_whole(value) else value


def _within(value: Any, limit: int) -> bool:
    """Return whether all known integers in a value are at most the limit."""
    if is_sequence(value):
        return all(_within(part, limit) for part in value)
    return not is_whole(value) or value <= limit


def calling(function: Callable[..., Any]) -> str:
    """Return the name of a function in messages; for a constructor, the name of the class."""
    qualified = function.__qualname__.removesuffix(".__init__").removesuffix(".__new__")
    owner, _, name = qualified.rpartition(".")
    return qualified if owner and not owner.endswith(">") and not name.startswith("__") else name or owner


@functools.cache
def _rules_of_fields(cls: type) -> dict[str, ArgumentRule]:
    """Return the rules of a dataclass' fields."""
    found: dict[str, ArgumentRule] = {}
    for one in reversed(cls.__mro__):
        scope = vars(sys.modules[one.__module__])
        for name, text in vars(one).get("__annotations__", {}).items():
            if name in getattr(cls, "__dataclass_fields__", {}) and not text.startswith("ClassVar"):
                found[name] = read_exactly(text, scope)
    return found


def misfit_of_fields(record: object) -> str:
    """Return the error for the first field of a record that contradicts its annotation; empty if none does.

    Example:
        >>> from dataclasses import dataclass
        >>> @dataclass
        ... class Extent:
        ...     size: "int"
        >>> misfit_of_fields(Extent(3)), misfit_of_fields(Extent("x"))
        ('', "Extent has size='x'; size must be an integer of 64 bits")
    """
    cls: type = type(record)
    for name, kind in _rules_of_fields(cls).items():
        value = getattr(record, name)
        if not kind.holds(value):
            return f"{cls.__name__} has {name}={shown(value)}; {name} must be {kind.words}"
    return ""


class Calls:
    """Decorator that makes functions and classes check their arguments.

    Args:
        refuse: returns the error to raise for a message.
        before: called first, for example to require that a kernel is being traced.
        misfit: returns the error to raise for unknown or missing arguments.
    """

    def __init__(
        self,
        refuse: Callable[[str], Exception],
        before: Callable[[], object] = tuple,
        misfit: Callable[[str], SignatureError] = SignatureError,
    ) -> None:
        self.refuse = refuse
        self.before = before
        self.misfit = misfit

    @overload
    def __call__(self, what: CallableType, /) -> CallableType: ...
    @overload
    def __call__(self, /, **most: Most) -> Callable[[CallableType], CallableType]: ...
    def __call__(self, what: Any = None, /, **most: Most) -> Any:
        """Decorate a function, a method, or the constructor of a class."""
        if what is None:
            return lambda inner: self._decorated(inner, most)
        return self._decorated(what, most)

    def of(self, called: str) -> Callable[[CallableType], CallableType]:
        """Decorate a function that a public one calls; messages name the public function."""
        return lambda inner: self._wrapped(inner, {}, called)

    def made(self, by: str) -> Callable[[ClassType], ClassType]:
        """Decorate a class that only the library makes; its constructor names the call that makes one."""

        def decorate(cls: ClassType) -> ClassType:
            cls.__init__ = self._wrapped(cls.__init__, {}, made_by=by)  # type: ignore[misc]
            return cls

        return decorate

    def methods(self, *names: str) -> Callable[[ClassType], ClassType]:
        """Decorate these methods of a class."""

        def decorate(cls: ClassType) -> ClassType:
            for name in names:
                setattr(cls, name, self._wrapped(vars(cls)[name], {}))
            return cls

        return decorate

    def _decorated(self, what: Any, most: Mapping[str, Most]) -> Any:
        if isinstance(what, type):
            CLASSES[what.__name__] = what
            what.__init__ = self._wrapped(what.__init__, most)  # type: ignore[misc]
            return what
        return self._wrapped(what, most)

    def _wrapped(
        self, function: CallableType, most: Mapping[str, Most], called: str = "", made_by: str = ""
    ) -> CallableType:
        signature, before = Signature(function, most, called, made_by), self.before

        @functools.wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            try:
                before()
                wrong = signature.wrong(args, kwargs)
                if wrong is not None:
                    raise self.refuse(signature.refusal(*wrong))
                return function(*args, **kwargs)
            except TypeError as error:
                if error.__traceback__ is None or error.__traceback__.tb_next is not None:
                    trim(error)
                    raise
                misfit = self.misfit(signature.unknown(kwargs) or str(error))
            except Exception as error:
                trim(error)
                raise  # bare: it adds no entry for this frame
            try:
                raise misfit
            except SignatureError as error:
                trim(error)
                raise

        call.signature = signature  # type: ignore[attr-defined]
        return cast(CallableType, call)


layouts = Calls(LayoutError)
"""Decorator for functions of layouts, views and maps."""

launches = Calls(LaunchError)
"""Decorator for functions that take the caller's arrays."""
