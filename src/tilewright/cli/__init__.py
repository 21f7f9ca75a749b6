"""The command line: thin verbs over the other packages."""

from __future__ import annotations

import os
import sys
from importlib import import_module

# `typing` would take most of the time until Ctrl-C is handled.
TYPE_CHECKING = False

if TYPE_CHECKING:
    from typing import NoReturn

INTERRUPTED = 130
"""Exit status after Ctrl-C, by the convention of shells."""


def main() -> None:
    """The entry point of `tilewright` and of `python -m tilewright`."""
    try:
        # Only a verb has something to clean up, and has Ctrl-C raise an error while it works.
        interrupts = import_module("tilewright.cli.console")
        interrupts.end_at_once(say_interrupted)
        status = import_module("tilewright.cli.verbs").run(sys.argv[1:])
    except KeyboardInterrupt:  # before there was a handler
        say_interrupted()
    sys.exit(status)


def say_interrupted(*_: object) -> NoReturn:
    """Say that the command was interrupted, and end at once."""
    try:
        os.write(2, b"tilewright: interrupted\n")
    finally:
        os._exit(INTERRUPTED)
