"""The command line: thin verbs over the rooms below."""

from __future__ import annotations

import os
import signal
import sys
from importlib import import_module

INTERRUPTED = 130
"""Exit status after Ctrl-C, as shells have it."""


def main() -> None:
    """The entry point of `tilewright` and of `python -m tilewright`."""
    # Before and after the work there is nothing to clean up.
    _on_interrupt(_end)
    verbs = import_module("tilewright.cli.verbs")
    _on_interrupt(signal.default_int_handler)
    status = verbs.run(sys.argv[1:])
    _on_interrupt(_end)
    sys.exit(status)


def _on_interrupt(handler: object) -> None:
    # A shell has those in the background ignore Ctrl-C.
    if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
        signal.signal(signal.SIGINT, handler)  # type: ignore[arg-type]


def _end(*_: object) -> None:
    """Say that the command was interrupted, and end at once."""
    try:
        os.write(2, b"tilewright: interrupted\n")
    finally:
        os._exit(INTERRUPTED)
