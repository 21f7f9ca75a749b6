"""Public namespaces, and errors for names that they do not have.

A namespace is a module with ``__all__``; `dir` shows that and nothing else.
"""

from __future__ import annotations

import logging  # noqa: F401  registers its fork hooks before ours, so that ours runs first and waits without its lock
import os
import sys
from _thread import RLock, get_ident
from importlib import import_module
from importlib.machinery import PathFinder
from time import monotonic, sleep, time

TYPE_CHECKING = False

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any, TypeVar

    Loaded = TypeVar("Loaded")

BEGUN = time()
"""Time when this process began to import the library."""

SPELLED = {
    "tilewright": "tw",
    "tilewright.ck": "tw.ck",
    "tilewright.hopper": "tw.hopper",
    "tilewright.layouts": "tw.layouts",
    "tilewright.ir": "tw.ir",
    "tilewright.testing": "tw.testing",
    "tilewright.targets.atoms": "tw.atoms",
    "tilewright.inspect.draw": "tw.draw",
}
"""The public namespaces, as users write them."""

ELSEWHERE = {
    "bmm": "matmul",
    "cdiv": "ceil_div",
    "dot": "matmul",
    "gemm": "matmul",
    "mm": "matmul",
    "pack_weights": "rearrange_weights",
}
"""Names in other libraries of functions of ``tw``."""

METHODS = {
    **{name: (f"x.{name}(axis)", f"tw.reduce_{name}") for name in ("sum", "max", "min")},
    "cumsum": ("x.cumsum(axis)", "tw.prefix_sum"),
    "mean": ("x.sum(axis) / x.shape[axis]", "tw.reduce_sum"),
}
"""Functions of other libraries, as methods of tiles and as functions of fragments."""


def namespace(
    module: str, names: list[str], find: Callable[[str], Any] | None = None
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Return ``__getattr__`` and ``__dir__`` of a module that is a public namespace.

    Args:
        module: its name.
        names: its public names.
        find: returns a name that is not loaded yet; None if the name does not exist.

    Example:
        >>> absent, names = namespace("tilewright.hopper", ["wait"])
        >>> names()
        ['wait']
        >>> absent("coalesce")
        Traceback (most recent call last):
        AttributeError: module 'tilewright.hopper' has no attribute 'coalesce'; it is tw.layouts.coalesce
    """

    def absent(name: str) -> Any:
        try:
            found = None if find is None else find(name)
            if found is None:
                raise missing(module, name)
        except AttributeError as error:
            import_module("tilewright.calls").trim(error)
            raise  # bare: it adds no entry for this frame
        return found

    return absent, lambda: names


def submodule(package: str, path: list[str], name: str) -> Any:
    """Import a module of a package; return None if it does not exist.

    Args:
        package: the package's name.
        path: its ``__path__``.
        name: the name after the dot.
    """
    found = None if name.startswith("__") else PathFinder.find_spec(f"{package}.{name}", path)
    return None if found is None else import_whole(found.name)


_FORK_WAITS_S = 60.0
"""Longest time in seconds that a fork waits for imports of other threads."""

_YIELD_S = 0.1
"""Longest time in seconds that a new import waits for a fork.

The fork may itself wait for an import that needs a module of this thread, so the time is bounded.
"""

_forking: list[int] = []
"""Identifiers of the threads that wait to fork."""

_importing: list[int] = []
"""Identifiers of the threads that import a module now, one for each nested import."""

_gate = RLock()
"""Held while a thread enters `_importing`, and by a fork until the child exists.

Signal handlers may import, so the lock must be reentrant.
"""


def import_whole(name: str) -> Any:
    """Import a module; signal handlers and forks wait until it is complete.

    A handler runs on the importing thread, and would find a half-loaded module.  Python's own handler of
    interrupts does not wait: it ends the import.  A forked child would wait for ever for a module that
    another thread of its parent imports, because that thread does not exist in the child.

    Args:
        name: the module's full name.

    Raises:
        ImportError: there is no such module.
    """
    known = sys.modules.get(name)
    if known is not None and not getattr(known.__spec__, "_initializing", False):
        return known
    return run_imports(lambda: import_module(name))


def part(place: str) -> Any:
    """Import ``"module:name"`` and return the object."""
    module, _, name = place.partition(":")
    return getattr(import_whole(module), name)


def run_imports(load: Callable[[], Loaded]) -> Loaded:
    """Call a function that imports modules; signal handlers and forks wait until they are complete.

    Args:
        load: imports modules, and returns a result.
    """
    me = get_ident()
    if me in _importing:
        return load()
    signal: Any = sys.modules["_signal"]  # a built-in; the module `signal` would be another import
    waiting: list[tuple[int, Any]] = []
    handlers: dict[int, Any] = {}

    def wait(number: int, frame: Any) -> None:
        waiting.append((number, frame))

    try:
        try:
            for number in signal.valid_signals():
                handler = signal.getsignal(number)
                if callable(handler) and handler is not signal.default_int_handler:
                    signal.signal(number, wait)
                    handlers[number] = handler
        except ValueError:
            pass  # another thread than the main one, which runs all handlers
        end = monotonic() + _YIELD_S
        while _forking and me not in _forking and monotonic() < end:
            sleep(0.001)
        with _gate:
            _importing.append(me)
        return load()
    finally:
        if me in _importing:  # an interrupt may come before the thread has entered
            _importing.remove(me)
        for number, handler in handlers.items():
            if signal.getsignal(number) is wait:  # the module may have set its own
                signal.signal(number, handler)
        _call_all([(handlers[number], number, frame) for number, frame in waiting])


def _call_all(calls: list[tuple[Any, int, Any]]) -> None:
    """Call signal handlers in order, all of them even if one raises."""
    if calls:
        (handler, number, frame), *others = calls
        try:
            handler(number, frame)
        finally:
            _call_all(others)


def _before_fork() -> None:
    """Wait until no other thread imports, and keep others from beginning."""
    me, end = get_ident(), monotonic() + _FORK_WAITS_S
    _forking.append(me)
    _gate.acquire()
    while any(thread != me for thread in _importing) and monotonic() < end:
        _gate.release()  # a thread that imports may wait for another that has not entered yet
        sleep(0.001)
        _gate.acquire()


def _after_fork_in_parent() -> None:
    _forking.remove(get_ident())
    _gate.release()


def _after_fork_in_child() -> None:
    me = get_ident()
    _forking.clear()
    _importing[:] = [thread for thread in _importing if thread == me]
    _gate.release()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=_before_fork, after_in_parent=_after_fork_in_parent, after_in_child=_after_fork_in_child
    )


def missing(module: str, name: str) -> AttributeError:
    """Return the error for a name that a namespace does not have; the error says where the name is.

    Example:
        >>> print(missing("tilewright", "tma_load"))
        module 'tilewright' has no attribute 'tma_load'; it is tw.hopper.tma_load
        >>> print(missing("tilewright.hopper", "tma_lode"))
        module 'tilewright.hopper' has no attribute 'tma_lode'; did you mean tw.hopper.tma_load?
    """
    text = f"module {module!r} has no attribute {name!r}"
    if name.startswith("_"):  # Python, test runners and debuggers ask for such names
        return AttributeError(text)
    names = {other: list(import_module(other).__all__) for other in SPELLED}
    if places := [SPELLED[other] for other in SPELLED if other != module and name in names[other]]:
        advice = f"; it is {places[0]}.{name}"
    elif name in METHODS and module == "tilewright":
        of_tiles, of_fragments = METHODS[name]
        advice = f"; write {of_tiles} for a tile of a kernel with tw.tiles, {of_fragments} in an explicit one"
    elif name in ELSEWHERE:
        advice = f"; did you mean tw.{ELSEWHERE[name]}?"
    else:
        close = import_module("difflib").get_close_matches
        own_first = sorted(SPELLED, key=lambda other: other != module)
        near = ((other, close(name, names[other], 1, 0.7)) for other in own_first)
        advice = next((f"; did you mean {SPELLED[other]}.{found[0]}?" for other, found in near if found), "")
    # Without an object, Python adds no guess of its own.
    error = AttributeError(text + advice, name=name, obj=None)
    error.of_users = True  # type: ignore[attr-defined]
    return error
