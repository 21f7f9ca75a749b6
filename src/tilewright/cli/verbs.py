"""The verbs of the command line, and the run of one command."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Annotated

import typer

from tilewright.cli import console
from tilewright.cli.console import Answering, choose, reports, say, size, tell
from tilewright.cli.contractions import complex_numbers, einsum, scaled
from tilewright.cli.doctor import doctor
from tilewright.cli.draw import draw
from tilewright.cli.export import export
from tilewright.cli.fused import attention, chain, reduce
from tilewright.cli.gemm import gemm
from tilewright.cli.inspect import inspect
from tilewright.cli.instance import instance
from tilewright.cli.replay import replay
from tilewright.cli.report import report
from tilewright.cli.tune import profile, tune
from tilewright.runtime.cache import Cache
from tilewright.runtime.environment import CACHE_BYTES, CACHE_DIR

# ---------------------------------------------------------------- `tilewright cache`


ACTIONS = ("stats", "clear")


@reports
def cache(
    action: Annotated[
        str, typer.Argument(help="stats: what it holds; clear: remove every kernel.")
    ] = "stats",
) -> None:
    """Show or clear the cache of compiled kernels."""
    choose("action", action, ACTIONS)
    kept = Cache.default()
    held = kept.stats()
    if (reason := kept.distrust()) is not None:
        say("not used", f"{kept.root}: {reason}; set {CACHE_DIR} to a directory of yours")
    if action == "clear":
        count = kept.clear()
        tell(cleared=count, bytes=held.bytes)
        say("cleared", f"{count} kernel{'s' * (count != 1)}, {size(held.bytes)}")
        return
    tell(directory=str(held.root), kernels=held.entries, bytes=held.bytes, limit_bytes=held.capacity_bytes)
    say("directory", f"{held.root} (set {CACHE_DIR} to keep it elsewhere)")
    say("kernels", f"{held.entries}, {size(held.bytes)}")
    say("limit", f"{size(held.capacity_bytes)} (set {CACHE_BYTES}, e.g. to 256MiB)")


# ---------------------------------------------------------------- all verbs


app = typer.Typer(
    name="tilewright",
    help="GEMM kernels written out of tiles: run them, look into them, and see what this machine can do.",
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    add_completion=False,
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
)
verbs = (
    gemm,
    scaled,
    einsum,
    attention,
    chain,
    reduce,
    doctor,
    inspect,
    report,
    profile,
    tune,
    instance,
    export,
    replay,
    cache,
)
for verb in verbs:
    app.command(cls=Answering)(verb)
app.command("complex", cls=Answering)(complex_numbers)
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
    """Run one command.

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
    except OSError as error:  # from the help, which is printed before a verb begins
        return console.close_streams(console.refused(error))
    return console.close_streams(console.OK)
