"""`tilewright export`: a kernel for programs without Python."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from tilewright.argument_checks import read_whole
from tilewright.cli.console import Constants, UsageError, choose, reports, say, size, tell, working
from tilewright.cli.notation import read_schedule
from tilewright.dataflow.nodes import EXACT, TF32
from tilewright.dtypes import dtype
from tilewright.errors import LaunchError
from tilewright.inspect.from_files import arrays_by_extents, bound_in_file
from tilewright.lang.program import Parameter
from tilewright.ops.products import output_dtype, plain
from tilewright.runtime.kernel import Bound
from tilewright.runtime.native import host_arch
from tilewright.runtime.specimens import Specimen, like
from tilewright.shipping.folder import export as export_kernel

ARRAY = re.compile(r"(?:(\w+)=)?(\d+(?:x\d+)*):(\w+)(?::(F|C|-?\d+(?:x-?\d+)*))?")
EXAMPLE = "A=4096x4096:bf16"


@reports
def export(
    kernel: Annotated[str, typer.Argument(help="matmul, or path/to/file.py:name, a kernel of a file.")],
    arrays: Annotated[
        list[str] | None,
        typer.Argument(help="Arrays of matmul: a, b and, if you like, the result, as EXTENTS:DTYPE."),
    ] = None,
    shape: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=EXTENTS:DTYPE[:STRIDES]",
            help="An array, e.g. A=4096x4096:bf16; STRIDES: C, F or numbers such as 8192x1. Commas separate "
            "several. An option with an array that is given again begins the next class; other arrays stay.",
            show_default=False,
        ),
    ] = None,
    arch: Annotated[
        str | None,
        typer.Option(help="Architectures, e.g. sm_90a,gfx942,x86-64-v3. Default: this processor's."),
    ] = None,
    folder: Annotated[
        Path, typer.Option("--output", "-o", metavar="DIR", help="The folder to write.")
    ] = Path("exported"),
    name: Annotated[
        str | None, typer.Option(help="Name of the C functions. Default: the kernel's.", show_default=False)
    ] = None,
    constant: Constants = None,
) -> None:
    """Export a kernel: static library, C header, manifest and CMake target, for programs without Python."""
    given = shape or []
    if kernel == "matmul":
        bound, problems = _matmul(arrays or [], given, constant or [])
        name = name or "matmul"
    else:
        if arrays:
            raise UsageError(f"{' '.join(arrays)}: arrays of a kernel have names", f"--shape {EXAMPLE}")
        bound, _ = bound_in_file(kernel, constant or [], "matmul")
        for text in given:
            if (each := arrays_by_extents(text, "f32", bound.program)) != text:
                raise UsageError(
                    f"--shape {text}: an export needs the dtype of each array", f"--shape {each}"
                )
        problems = read_problems(given, bound.program.parameters)
    archs = [one.strip() for one in (arch or host_arch()).split(",")]
    with working("compiling"):
        made = export_kernel(bound, problems, archs, folder, name)
    tell(**made, folder=str(folder))
    for one in made["kernels"]:
        say(one["target"], f"{one['arch']}, class {one['class']}: {one['schedule'] or 'explicit kernel'}")
    total = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    say("wrote", f"{folder}: {made['name']}.h, {len(made['sha256']) + 1} files, {size(total)}")


def read_array(text: str) -> tuple[str, Specimen]:
    """Read one array: ``NAME=EXTENTS:DTYPE``, or with ``:STRIDES``; the name may be missing.

    Raises:
        UsageError: the text has another form.

    Example:
        >>> read_array("A=4096x96:bf16"), read_array("8x8:f32:F")[1].strides
        (('A', <like bf16[4096x96], strides (96, 1), align 16>), (1, 8))
    """
    found = ARRAY.fullmatch(text.strip())
    if found is None:
        raise UsageError(f"array {text!r} means nothing", EXAMPLE)
    called, extents, kind, strides = found.groups(default="")
    shape = tuple(read_whole("an extent", one, EXAMPLE) for one in extents.split("x"))
    if strides in ("C", "F", ""):
        return called, like(dtype(kind), shape, order="F" if strides == "F" else "C")
    return called, like(dtype(kind), shape, strides=tuple(int(one) for one in strides.split("x")))


def read_problems(texts: Sequence[str], parameters: Sequence[Parameter]) -> list[list[Specimen | None]]:
    """Read the arrays of one or more problems of a kernel; see `read_arrays`.

    Args:
        texts: options, each with one or more arrays.
        parameters: the kernel's parameters.
    """
    tensors = [one.name for one in parameters if one.kind == "tensor"]
    return [
        [problem.get(one.name) for one in parameters]
        for problem in read_arrays(texts, tensors, tensors, "the kernel")
    ]


def read_arrays(
    texts: Sequence[str], names: Sequence[str], needed: Sequence[str], of: str
) -> list[dict[str, Specimen]]:
    """Read the arrays of one or more problems.

    Args:
        texts: options, each with one or more arrays. An option with an array that was given before, or an
            array that is given twice in one option, begins the next problem.
        names: the names of all possible arrays.
        needed: names of the arrays that every problem must have.
        of: the kernel or operation that takes the arrays, in messages.

    Raises:
        UsageError: an array has no name, is unknown, or is missing.
    """
    problems = list[dict[str, Specimen]]()
    fresh = set[str]()
    for text in texts:
        given = [read_array(word) for word in text.split(",")]
        begins = not problems or any(called in fresh for called, _ in given)
        for called, one in given:
            if called not in names:
                raise UsageError(f"--shape {text!r}: {of} has no array {called!r}; it has {', '.join(names)}")
            if begins or called in fresh:
                problems.append(dict(problems[-1]) if problems else {})
                fresh.clear()
                begins = False
            fresh.add(called)
            problems[-1][called] = one
    for problem in problems or [{}]:
        if missing := [one for one in needed if one not in problem]:
            options = " ".join(f"--shape {one}=EXTENTS:DTYPE" for one in missing)
            raise UsageError(f"no array {', '.join(missing)}; give {options}")
    return problems


def _matmul(
    arrays: Sequence[str], texts: Sequence[str], constants: Sequence[str]
) -> tuple[Bound, list[list[Specimen | None]]]:
    """Return the kernel of `matmul`, and its arrays A (M, K), B (K, N), D (M, N)."""
    given = {"precision": EXACT, "schedule": ""}
    for text in constants:
        called, equals, value = text.partition("=")
        if not equals or called not in given:
            what = f"--set {text}: matmul is exported with precision= and schedule= only"
            raise UsageError(what, "a dataflow kernel with these terms, in a file")
        given[called] = value
    precision = given["precision"].strip("'\"")
    choose("precision", precision, (EXACT, TF32))
    bound = plain(0).bind(precision=precision, schedule=read_schedule(given["schedule"] or None))
    if texts and not arrays:
        return bound, read_problems(texts, bound.program.parameters)
    if len(arrays) not in (2, 3):
        what = f"matmul takes a, b and perhaps the result, and was given {len(arrays)} arrays"
        raise UsageError(what, "tilewright export matmul 4096x4096:bf16 4096x4096:bf16")
    a, b, *rest = (read_array(text)[1] for text in arrays)
    if len(a.shape) != 2 or len(b.shape) != 2 or a.shape[1] != b.shape[0]:
        rule = "a (M, K) is multiplied by b (K, N), so both have two dimensions, and K is the same"
        text = f"matmul: a is {a.shape} and b is {b.shape}; {rule}"
        raise LaunchError(text)
    out = rest[0] if rest else like(output_dtype(a.dtype), (a.shape[0], b.shape[1]))
    if out.shape != (a.shape[0], b.shape[1]):
        raise LaunchError(f"matmul: the result is {out.shape}", (a.shape[0], b.shape[1]))
    return bound, [[a, b, out]]
