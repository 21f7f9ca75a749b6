"""The command line: thin verbs over the rooms below."""

from __future__ import annotations

import typer

from tilewright.cli.cache import cache
from tilewright.cli.doctor import doctor
from tilewright.cli.draw import draw
from tilewright.cli.gemm import gemm
from tilewright.cli.inspect import inspect

__all__ = ["app", "main"]

app = typer.Typer(
    name="tilewright",
    help="GEMM kernels written out of tiles: run them, look into them, and see what this machine can do.",
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    add_completion=False,
    no_args_is_help=True,
)
for verb in (gemm, doctor, inspect, cache):
    app.command()(verb)
app.add_typer(draw, name="draw")


def main() -> None:
    """The entry point of `tilewright` and of `python -m tilewright`."""
    app(prog_name="tilewright")
