"""`tilewright draw`: pictures of layouts, maps, bank conflicts and pipelines."""

from __future__ import annotations

import math
import re
import sys
from pathlib import Path
from typing import Annotated

import typer

from tilewright.argument_checks import read_whole
from tilewright.cli.console import Answering, Constants, reports, tell, working
from tilewright.cli.notation import MATRICES, matrix_rows, read_layout, read_map, read_pair
from tilewright.dtypes import dtype as dtype_named
from tilewright.errors import LayoutError
from tilewright.inspect.draw import Picture, draw_banks, draw_distribution, draw_layout, draw_timeline
from tilewright.inspect.draw.picture import check_suffix
from tilewright.inspect.draw.timelines import MOST_STEPS
from tilewright.inspect.from_files import from_file
from tilewright.inspect.subject import library_gemm
from tilewright.ir.types import Memory, TensorType
from tilewright.lang.sharing import by_number, thread_map
from tilewright.layout.layout import Layout
from tilewright.runtime.outputs import check_output, is_standard_output
from tilewright.targets.target import CUDA
from tilewright.views.transforms import Tile
from tilewright.views.view import View

draw = typer.Typer(
    help="Draw a layout, a (thread, value) map, bank conflicts or a pipeline's timeline.",
    rich_markup_mode=None,
    no_args_is_help=True,
)

Output = Annotated[
    Path | None,
    typer.Option("-o", "--output", help="File to write: .svg, .png, .pdf or .txt. Default: the terminal."),
]
LAYOUT_HELP = "shape:stride, nested or not, then transforms: '(64,64):(64,1) | Swizzle(3,3,3)'."


@draw.command("layout", cls=Answering)
@reports
def layout_(layout: Annotated[str, typer.Argument(help=LAYOUT_HELP)], output: Output = None) -> None:
    """Draw the offset of every coordinate of a layout."""
    _check(output)
    _give(draw_layout(read_layout(layout), f"Layout {layout}"), output)


@draw.command("map", cls=Answering)
@reports
def map_(
    name: Annotated[
        str,
        typer.Argument(
            help="An atom (mma.m16n8k16.f32.f16, wgmma.m64n128k16, fma.f32.f32.4x8), ldmatrix.x4[.trans], "
            "stmatrix.x4[.trans], or tw.blocked(...)."
        ),
    ],
    operand: Annotated[str, typer.Option(help="Which operand of an atom: A (m, k), B (n, k) or C.")] = "C",
    warps: Annotated[str, typer.Option(help="Warps, or warpgroups, along M and N.")] = "1x1",
    repeats: Annotated[str, typer.Option(help="Atoms per warp along M and N.")] = "1x1",
    depth: Annotated[
        int | None, typer.Option(help="K of A or B. Default: the atom's.", show_default=False)
    ] = None,
    output: Output = None,
) -> None:
    """Draw which thread holds each element of a tile, and in which value."""
    _check(output)
    pairs = read_pair("warps", warps), read_pair("repeats", repeats)
    distribution, title = read_map(name, operand, *pairs, depth)
    _give(draw_distribution(distribution, title), output)


@draw.command("banks", cls=Answering)
@reports
def banks_(
    layout: Annotated[str, typer.Argument(help=f"Of the tensor in shared memory: {LAYOUT_HELP}")],
    access: Annotated[
        str,
        typer.Option(
            help="copy, ldmatrix.x4, stmatrix.x4, an atom whose operand is read, or Python: tw.raked(...)."
        ),
    ] = "copy",
    threads: Annotated[
        str,
        typer.Option(
            help="Threads of a copy: how many, e.g. 128; along each dimension, the first fastest, e.g. 32x4; "
            "or a layout of threads."
        ),
    ] = "32x1",
    vector: Annotated[
        int | None, typer.Option(help="Elements per access. Default: up to 16 bytes.", show_default=False)
    ] = None,
    dtype: Annotated[str, typer.Option(help="Element type.")] = "f16",
    operand: Annotated[str, typer.Option(help="Which operand of an atom: A or B.")] = "A",
    at: Annotated[str, typer.Option(help="Which tile an ldmatrix or an atom accesses.")] = "0,0",
    output: Output = None,
) -> None:
    """Draw which bank of shared memory each lane hits, and the passes that conflicts cost."""
    _check(output)
    view = read_layout(layout)
    view = View.of(view) if isinstance(view, Layout) else view
    element = dtype_named(dtype)
    if access == "copy":
        if threads.isdecimal():
            count = read_whole("a count of threads", threads, "256")
            spread = by_number([TensorType(Memory.SHARED, element, view)], count)
        else:
            spread = thread_map(view.shape, _threads(threads))
        reader = f"a copy by {spread.size_threads} threads"
    else:
        spread = matrix_rows(access) if MATRICES.fullmatch(access) else read_map(access, operand)[0]
        if view.rank != spread.rank:
            raise LayoutError(f"a map of rank {spread.rank} for a tensor of rank {view.rank}")
        place = _indices("at", at)
        view = Tile(spread.shape, place).apply(view) if view.shape != spread.shape else view
        reader = access
    if MATRICES.fullmatch(access) and element.bytes != 2:
        raise LayoutError(f"{access} moves elements of 16 bits, not {element}; nearest: f16")
    dim, run = spread.vector()
    width = vector or math.gcd(view.vector_width(dim, max(16 // element.bytes, 1)), run)
    _give(draw_banks(view, spread, width, element.bytes, f"{reader}, {element}"), output)


@draw.command("timeline", cls=Answering)
@reports
def timeline_(
    kernel: Annotated[
        str,
        typer.Argument(
            help="gemm, the library's; or path/to/file.py:name, a kernel or a bound kernel; or NAME[key]."
        ),
    ],
    dtype: Annotated[
        str, typer.Option(help="Element type of every array, or one for each: A=i8,B=i8,C=i32.")
    ] = "f16",
    shape: Annotated[
        str, typer.Option(help="Extents: MxNxK or by name; at most 256 of each are run.")
    ] = "128x128x128",
    constant: Constants = None,
    block: Annotated[
        str | None, typer.Option(help="Which block of the grid, e.g. 1,0.", show_default="the first")
    ] = None,
    first: Annotated[int, typer.Option(help="The first logical step to show.")] = 0,
    steps: Annotated[int, typer.Option(help="How many logical steps to show.")] = MOST_STEPS,
    output: Output = None,
) -> None:
    """Run a block on the reference, and draw what its warps and engines do over logical time."""
    _check(output)
    if kernel == "gemm":
        subject = library_gemm(dtype, shape, "nt")
    else:
        subject = from_file(kernel, dtype, shape, constant or [])
    with working("running on the reference"):
        made = subject.timeline(None if block is None else _indices("block", block), CUDA.name)
    _give(draw_timeline(made, first, steps), output)


def _threads(text: str) -> Layout | tuple[int, ...]:
    if re.fullmatch(r"\d+(x\d+)*", text):
        return tuple(read_whole("a count of threads", part, "32x4") for part in text.split("x"))
    made = read_layout(text)
    if not isinstance(made, Layout):
        raise LayoutError(f"threads {text!r}: give counts such as 32x4, or a layout without transforms")
    return made


def _indices(option: str, text: str) -> tuple[int, ...]:
    if not re.fullmatch(r"\d+(,\d+)*", text):
        raise LayoutError(f"--{option} {text!r} means nothing; give e.g. --{option} 0,0")
    return tuple(read_whole(f"--{option}", part, f"--{option} 0,0") for part in text.split(","))


def _check(output: Path | None) -> None:
    if output is not None:
        check_suffix(output)
        check_output(output)


def _give(picture: Picture, output: Path | None) -> None:
    """Write a picture to a file, or as text to the standard output, in colours on a terminal."""
    tell(title=picture.title, picture=picture.text.splitlines(), file=None if output is None else str(output))
    if output is not None:
        saved = picture.save(output)
        if not is_standard_output(output):
            typer.echo(f"wrote {saved}")
    elif sys.stdout.isatty():
        from rich.console import Console
        from rich.text import Text

        console = Console(highlight=False)
        for line in picture.lines:
            text = Text()
            for span in line:
                text.append(span.text, f"#1f2328 on {span.fill}" if span.fill else "")
            console.print(text, soft_wrap=True)
    else:
        typer.echo(picture.text)
