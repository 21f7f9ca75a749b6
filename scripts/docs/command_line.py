"""Write the page of the command line: what each verb says about itself."""

from __future__ import annotations

from typing import Any

import click
from scripts.docs.pages import fenced
from typer.main import get_command

from tilewright.cli.verbs import app

INTRO = """# Command line

Each verb with what `tilewright VERB --help` prints. Exit status: 0, or 1 if a result is wrong, 2 if a request
cannot be served, 130 after Ctrl-C.
"""


def verbs() -> dict[str, click.Command]:
    """Return the commands of `tilewright` by their names."""
    group: Any = get_command(app)
    return dict(sorted(group.commands.items()))


def help_of(name: str, verb: click.Command) -> str:
    """Return what `tilewright VERB --help` prints."""
    with click.Context(verb, info_name=f"tilewright {name}", terminal_width=100) as context:
        return verb.get_help(context)


def page() -> str:
    """Return the page."""
    parts = [
        f"## tilewright {name}\n\n{fenced(help_of(name, verb), 'text')}" for name, verb in verbs().items()
    ]
    return "\n".join([INTRO, *parts])
