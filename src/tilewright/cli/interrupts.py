"""What Ctrl-C does: end the command at once, or be raised where there is something to clean up."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Callable, Iterator

_at_once: list[Callable[..., object]] = []


def end_at_once(handler: Callable[..., object]) -> None:
    """Have Ctrl-C end the command from now on, unless a shell or a program has it do something else."""
    if _ours(signal.default_int_handler):
        signal.signal(signal.SIGINT, handler)
        _at_once[:] = [handler]


@contextlib.contextmanager
def raised() -> Iterator[None]:
    """Have Ctrl-C raise `KeyboardInterrupt` meanwhile."""
    if not _at_once or not _ours(_at_once[0]):
        yield
        return
    signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, _at_once[0])


def _ours(handler: Callable[..., object]) -> bool:
    main = threading.current_thread() is threading.main_thread()
    return main and signal.getsignal(signal.SIGINT) is handler
