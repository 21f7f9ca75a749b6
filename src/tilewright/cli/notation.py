"""Notation of the command line: layouts with transforms, and maps of atoms and of ldmatrix."""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any

from tilewright.argument_checks import read_whole
from tilewright.dtypes import f64
from tilewright.errors import LOOSELY_CLOSE, LaunchError, LayoutError, TilewrightError, close_to
from tilewright.ir.mma import REGISTERS, MmaAtom, TiledMma
from tilewright.layout.layout import Layout
from tilewright.schedule.schedule import Schedule
from tilewright.targets import atoms
from tilewright.threads.distribution import Distribution, Mode
from tilewright.views.transforms import TRANSFORMS
from tilewright.views.view import View

ATOMS: Mapping[str, MmaAtom] = {atom.name: atom for atom in vars(atoms).values() if isinstance(atom, MmaAtom)}
WGMMA = re.compile(r"wgmma\.m64n(\d+)k\d+(?:\.[\w.]+)?")
FMA = re.compile(r"fma\.(\w+)\.(\w+)\.(\d+)x(\d+)(?:\.(\d+)x(\d+))?")
MATRICES = re.compile(r"(?:ld|st)matrix\.x([124])(\.trans)?")
MATRIX_NAMES = tuple(
    f"{verb}matrix.x{count}{trans}"
    for verb in ("ld", "st")
    for count in (1, 2, 4)
    for trans in ("", ".trans")
)


def read_layout(text: str) -> Layout | View:
    """Read a layout and the transforms after it: ``shape:stride | Transform(...) | ...``.

    Args:
        text: also a Python expression that begins with ``tw.``; a shape alone is packed, the first mode
            fastest.

    Raises:
        LayoutError: the text cannot be read, or a transform does not exist or does not fit.

    Example:
        >>> print(read_layout("(4,(2,4)):(2,(1,8))"))
        (4,(2,4)):(2,(1,8))
        >>> print(read_layout("(8,64):(64,1) | Swizzle(3,3,3) | Permute((1,0))"))
        (64, 8) -> 64*i1 + ((8*i1) ^ i0)
    """
    head, *steps = (part.strip() for part in text.split("|"))
    made = _python(head) if head.startswith("tw.") else _layout(head)
    if not isinstance(made, Layout | View):
        raise LayoutError(f"{head!r} is a {type(made).__name__}; give a layout or a view")
    for step in steps:
        view = View.of(made) if isinstance(made, Layout) else made
        made = _transform(step).apply(view)
    return made


def read_schedule(text: str | None) -> Schedule | None:
    """Read a schedule from a Python expression; return None for None.

    Raises:
        LaunchError: the expression is no schedule.

    Example:
        >>> read_schedule("tw.Schedule(tw.atoms.MMA_F16, (64, 64, 32), warps=(2, 2))").tile
        (64, 64, 32)
    """
    if text is None:
        return None
    made = _python(text)
    if not isinstance(made, Schedule):
        nearest = "tw.Schedule(tw.atoms.MMA_F16, (64, 64, 32), warps=(2, 2))"
        raise LaunchError(f"--schedule {text!r} is no schedule", f"--schedule '{nearest}'")
    return made


def read_map(
    text: str,
    operand: str = "C",
    warps: tuple[int, int] = (1, 1),
    repeats: tuple[int, int] = (1, 1),
    depth: int | None = None,
) -> tuple[Distribution, str]:
    """Return the (thread, value) map of a name, and the title of its picture.

    Args:
        text: an atom's name or the beginning of it, ``ldmatrix.x1`` to ``.x4`` with or without ``.trans``,
            ``stmatrix`` likewise, or a Python expression that begins with ``tw.``.
        operand: which operand of an atom: A, B or C.
        warps: warps along M and N of a tiled MMA, warpgroups for wgmma.
        repeats: atoms per warp along M and N.
        depth: K of an operand A or B; default: the atom's.

    Raises:
        LayoutError: the name is unknown.

    Example:
        >>> read_map("mma.m16n8k8", "A")[1]
        'A (16 x 8) of mma.m16n8k8.f32.tf32'
        >>> read_map("ldmatrix.x4")[0].shape
        (16, 16)
    """
    if MATRICES.fullmatch(text):
        return matrix_map(text), f"Registers that {text} {'fills' if text.startswith('ld') else 'stores'}"
    found = _python(text) if text.startswith("tw.") else _atom(text)
    if isinstance(found, Distribution):
        return found, text
    if isinstance(found, MmaAtom):
        found = TiledMma(found, warps, repeats)
    if not isinstance(found, TiledMma):
        raise LayoutError(
            f"{text!r} is a {type(found).__name__}; give a distribution, an atom or a tiled MMA"
        )
    if operand == "B" and REGISTERS not in found.atom.b_places:
        raise LayoutError(f"{found.atom} reads B from shared memory, no thread holds it; nearest: A or C")
    k = depth or found.atom.shape[2]
    if operand not in ("A", "B", "C"):
        raise LayoutError(f"unknown operand {operand!r}; choose one of A, B, C")
    spread = found.c() if operand == "C" else found.a(k) if operand == "A" else found.b(k)
    title = f"{operand} ({' x '.join(map(str, spread.shape))}) of {found.atom}"
    if found.warps != (1, 1):
        title += (
            f", {found.warps[0]} x {found.warps[1]} {'warps' if found.atom.lanes <= 64 else 'warpgroups'}"
        )
    return spread, title


def matrix_map(name: str) -> Distribution:
    """Return the map of lanes to elements of 8 x 8 matrices of 16 bits, numbered down the columns first.

    Source: PTX ISA, "Warp-level matrix load instruction: ldmatrix" and "… store instruction: stmatrix", whose
    registers are the same.

    Example:
        >>> matrix_map("ldmatrix.x4").coordinate(5, 1), matrix_map("stmatrix.x4.trans").coordinate(5, 1)
        ((1, 3), (3, 1))
    """
    count, along = _matrices(name)
    row, column = (1, 0) if name.endswith(".trans") else (0, 1)
    lanes = (Mode(4, column, 2), Mode(8, row, 1))
    return Distribution(_box(count), lanes, (Mode(2, column, 1), *along))


def matrix_rows(name: str) -> Distribution:
    """Return the map of lanes to the rows of 8 elements of 16 bits at their addresses.

    Example:
        >>> matrix_rows("ldmatrix.x4").coordinate(17, 0)
        (1, 8)
    """
    count, along = _matrices(name)
    return Distribution(_box(count), (Mode(8, 0, 1), *along), (Mode(8, 1, 1),))


def read_pair(what: str, text: str) -> tuple[int, int]:
    """Read two positive integers, such as ``2x4``.

    Raises:
        LayoutError: the text has another form.

    Example:
        >>> read_pair("warps", "2x4")
        (2, 4)
    """
    found = re.fullmatch(r"([1-9]\d*)x([1-9]\d*)", text)
    if not found:
        raise LayoutError(f"{what} {text!r} means nothing; give two counts, along M and N, e.g. 2x2")
    return read_whole(what, found[1], "2x2"), read_whole(what, found[2], "2x2")


def _matrices(name: str) -> tuple[int, tuple[Mode, ...]]:
    found = MATRICES.fullmatch(name)
    if not found:
        raise LayoutError(
            f"unknown {name!r}; one of {', '.join(MATRIX_NAMES)}{close_to(name, MATRIX_NAMES, LOOSELY_CLOSE)}"
        )
    count = int(found[1])
    return count, (Mode(2, 0, 8), Mode(2, 1, 8))[: count.bit_length() - 1]


def _box(count: int) -> tuple[int, int]:
    return (16 if count > 1 else 8, 16 if count > 2 else 8)


def _layout(text: str) -> Layout:
    shape, colon, stride = text.partition(":")
    try:
        parts = [ast.literal_eval(part.strip()) for part in ((shape, stride) if colon else (shape,))]
    except (ValueError, SyntaxError, RecursionError, MemoryError):
        parts = []
    if not parts or not all(map(_is_integers, parts)):
        raise LayoutError(f"layout {text!r} means nothing; give shape:stride, e.g. (4,(2,4)):(2,(1,8))")
    return Layout(*parts)


def _is_integers(value: Any) -> bool:
    return all(map(_is_integers, value)) if isinstance(value, tuple) else type(value) is int


def _transform(text: str) -> Any:
    known = {transform.__name__: transform for transform in TRANSFORMS}
    try:
        call = ast.parse(text, mode="eval").body
        if not (isinstance(call, ast.Call) and isinstance(call.func, ast.Name)):
            raise SyntaxError
        name = call.func.id
        given = [ast.literal_eval(argument) for argument in call.args]
        named = {keyword.arg or "": ast.literal_eval(keyword.value) for keyword in call.keywords}
    except (ValueError, SyntaxError, RecursionError, MemoryError):
        raise LayoutError(f"transform {text!r} means nothing; write e.g. Swizzle(3,3,3)") from None
    if name not in known:
        near = close_to(name, known, LOOSELY_CLOSE)
        raise LayoutError(f"unknown transform {name!r}; choose one of {', '.join(sorted(known))}{near}")
    try:
        return known[name](*given, **named)
    except TypeError as error:
        takes = ", ".join(field.name for field in fields(known[name]))
        raise LayoutError(f"transform {text!r}: {name} takes ({takes})") from error


def _atom(text: str) -> MmaAtom:
    if found := WGMMA.fullmatch(text):
        columns = read_whole("n", found[1], text)
        for row in atoms.WGMMA:
            atom = atoms.wgmma(row.a, columns, row.b, row.c)
            if atom.name == text or atom.name.startswith(f"{text}."):
                return atom
    if found := FMA.fullmatch(text):
        acc, element, *counts = found.groups(default="1")
        lanes_m, lanes_n, m, n = (read_whole("a count of lanes or elements", count, text) for count in counts)
        return atoms.fma(element, acc, (lanes_m, lanes_n), (m, n))
    fitting = [atom for name, atom in ATOMS.items() if name == text or name.startswith(f"{text}.")]
    # f64 has its own maps. They are chosen only if f64 is named, or if no other atom has this shape.
    fitting = [atom for atom in fitting if atom.a_dtype != f64] or fitting
    # Atoms that differ in accumulators or narrow floats have equal maps: take the first.
    if fitting and len({(atom.a, atom.b, atom.c) for atom in fitting}) == 1:
        return fitting[0]
    known: Sequence[str] = [*ATOMS, "wgmma.m64n128k16.f32.f16", "fma.f32.f32.4x8", *MATRIX_NAMES]
    meant = [name for name in known if "f64" in text or "f64" not in name]
    raise LayoutError(
        f"unknown map {text!r}; choose one of {', '.join(known[: len(ATOMS)])}, "
        "wgmma.m64n8k16 to n256, fma.<accumulator>.<dtype>.<lanes> such as fma.f32.f16.4x8, ldmatrix.x1 to "
        ".x4 (.trans), stmatrix likewise, or a Python expression such as tw.blocked((8, 16), (4, 8), (1, 0))"
        f"{close_to(text, meant, LOOSELY_CLOSE)}"
    )


def _python(text: str) -> Any:
    try:
        return eval(text, {"tw": sys.modules["tilewright"]})
    except TilewrightError:
        raise
    except Exception as error:  # the expression may raise anything
        raise LayoutError(f"{text!r}: {type(error).__name__}: {error}") from error
