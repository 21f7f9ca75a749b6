"""The verbs of the command line, and one command from its words to its exit status."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Annotated

import typer

from tilewright.cli import console
from tilewright.cli.attention import attention
from tilewright.cli.cache import cache
from tilewright.cli.chain import chain
from tilewright.cli.complex_numbers import complex_numbers
from tilewright.cli.doctor import doctor
from tilewright.cli.draw import draw
from tilewright.cli.einsum import einsum
from tilewright.cli.gemm import gemm
from tilewright.cli.inspect import inspect
from tilewright.cli.instance import instance
from tilewright.cli.profile import profile
from tilewright.cli.reduce import reduce
from tilewright.cli.scaled import scaled
from tilewright.cli.tune import tune

app = typer.Typer(
    name="tilewright",
    help="GEMM kernels written out of tiles: run them, look into them, and see what this machine can do.",
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    add_completion=False,
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
)
for verb in (gemm, scaled, einsum, attention, chain, reduce, doctor, inspect, profile, tune, instance, cache):
    app.command()(verb)
app.command("complex")(complex_numbers)
app.add_typer(draw, name="draw")


def _version(asked: bool) -> None:
    if asked:
        typer.echo(f"tilewright {sys.modules['tilewright'].__version__}")
        raise typer.Exit


@app.callback()
def front(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    """GEMM kernels written out of tiles: run them, look into them, and see what this machine can do."""


def run(arguments: Sequence[str]) -> int:
    """Serve one command.

    Args:
        arguments: its words, without the program's name.

    Returns:
        The exit status: 0, 1 for a wrong result, 2 for a request that cannot be served, 130 after Ctrl-C.
    """
    if not console.open_streams():
        return console.BAD_INPUT
    try:
        app(list(arguments), prog_name="tilewright")
    except SystemExit as stop:
        return console.close_streams(stop.code if isinstance(stop.code, int) else console.OK)
    except OSError as error:  # of the help, which is written before a verb begins
        return console.close_streams(console.refused(error))
    return console.close_streams(console.OK)
