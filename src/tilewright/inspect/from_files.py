"""Kernels in Python files: their names and calls, and a kernel as a subject of an inspection."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import os
import re
import reprlib
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from tilewright.dtypes import DType, dtype
from tilewright.errors import LOOSELY_CLOSE, LaunchError, close_to
from tilewright.inspect.subject import Subject, read_shape, require_extents, told
from tilewright.lang.program import Parameter, Program
from tilewright.runtime.kernel import Bound, Kernel


def from_file(where: str, dtype_names: str, shape: str, constants: Sequence[str]) -> Subject:
    """Load a kernel from a Python file.

    Args:
        where: ``path/to/file.py:name``; the name of a kernel or a bound kernel, or ``NAME[key]`` for one in a
            dictionary, the key without quotes.
        dtype_names: one element type for all arrays, or ``A=i8,B=i8,C=i32``.
        shape: extents in the notation of `read_shape`.
        constants: ``NAME=EXPRESSION`` for each constant and each number of the kernel; Python, evaluated in
            the file's own namespace.

    Raises:
        LaunchError: the file or the kernel does not exist, or a value is missing.
    """
    bound, numbers = bound_in_file(where, constants)
    dtypes, extents = _dtypes(dtype_names, bound.program), _extents(shape, bound.program)
    return Subject(bound, dtypes, extents, numbers=numbers)


def bound_in_file(where: str, constants: Sequence[str], other: str = "gemm") -> tuple[Bound, dict[str, Any]]:
    """Load a kernel from a Python file with its constants, and return it with the values of its numbers.

    Args:
        where: as for `from_file`.
        constants: as for `from_file`.
        other: what may be named instead of a file.

    Raises:
        LaunchError: the file or the kernel does not exist, or a value is missing.
    """
    path, colon, name = where.rpartition(".py:")
    if not colon and not where.endswith(".py"):
        raise LaunchError(f"unknown kernel {where!r}; give {other}, or path/to/file.py:name")
    path = f"{path}.py" if colon else where
    module = load(Path(path))
    kernels = kernels_in(module)
    found = kernels.get(name)
    if found is None:
        what = f"no kernel {name!r}" if name else "no kernel of the empty name"
        near = close_to(name, kernels, LOOSELY_CLOSE)
        raise LaunchError(f"{path} has {what}; it has {', '.join(kernels) or 'none'}{near}")
    given = read_constants(constants, module)
    for parameter in found.program.parameters:
        if parameter.name not in given:
            continue
        if parameter.kind == "tensor":
            raise LaunchError(f"--set {parameter.name}: it is an array; give its --dtype and --shape")
        value, is_index = given[parameter.name], parameter.kind == "index"
        if isinstance(value, bool) or not isinstance(value, int if is_index else int | float):
            what = "an integer" if is_index else "a number"
            raise LaunchError(f"--set {parameter.name}={value!r}: {parameter.name} is {what}")
    taken = {parameter.name for parameter in found.program.parameters if parameter.kind != "tensor"}
    numbers = {name: given.pop(name) for name in taken & given.keys()}
    if isinstance(found, Bound) and given:
        raise LaunchError(f"{name} is bound already; leave out --set {', '.join(given)}")
    bound = found if isinstance(found, Bound) else found.bind(**given)
    return bound, numbers


def arrays_by_extents(text: str, dtype_names: str, program: Program) -> str:
    """Return the arrays ``A=64x32:f32,…`` of a kernel for extents of its dimensions, ``M=64,K=32``.

    Args:
        text: the extents; a text that names anything else is returned unchanged.
        dtype_names: a dtype, or one for each array: ``A=i8,C=i32``.
        program: the kernel.

    Raises:
        LaunchError: a dimension has no extent, an array no dtype, or a parameter no named dimensions.
    """
    names = [part.partition("=")[0] for part in text.split(",")]
    if not re.fullmatch(r"\w+=\d+(,\w+=\d+)*", text) or not {*names} <= {*_dims(program)}:
        return text
    extents, dtypes = _extents(text, program), _dtypes(dtype_names, program)
    shapes = {p.name: "x".join(str(extents[dim]) for dim in p.named) for p in program.parameters if p.named}
    return ",".join(f"{name}={shape}:{dtypes[name]}" for name, shape in shapes.items())


def kernels_in(module: ModuleType) -> dict[str, Kernel | Bound]:
    """Return the kernels of a file by name; a kernel in a dictionary as ``NAME[key]``."""
    found: dict[str, Kernel | Bound] = {}
    for name, value in vars(module).items():
        if isinstance(value, Kernel | Bound):
            found[name] = value
        elif isinstance(value, dict):
            inside = {f"{name}[{key}]": item for key, item in value.items()}
            found |= {key: item for key, item in inside.items() if isinstance(item, Kernel | Bound)}
    return found


def listed(path: Path) -> str:
    """List the kernels of a file with their parameters and constants, and commands to call and inspect them.

    Raises:
        LaunchError: the file does not exist, fails, or has no kernel.
    """
    kernels = kernels_in(load(path))
    if not kernels:
        raise LaunchError(f"{path} has no kernel; a function becomes one by @tw.kernel")
    return "\n\n".join(_described(path, name, kernel) for name, kernel in kernels.items())


def _described(path: Path, name: str, kernel: Kernel | Bound) -> str:
    program = kernel.program
    bound = kernel.constants if isinstance(kernel, Bound) else {}
    parameters = [_declared(parameter) for parameter in program.parameters]
    open_constants = [] if bound else [c for c in program.constants if c not in program.defaults]
    constants = [
        f"{c}={reprlib.repr(program.defaults[c])}" if c in program.defaults else c for c in program.constants
    ]
    star = ["*", *constants] if constants and not bound else []
    lines = [f"{name}({', '.join([*parameters, *star])})"]
    if text := inspect.getdoc(program.function):
        lines.append(text.partition("\n")[0])
    if bound:
        lines.append(f"with {', '.join(f'{c}={reprlib.repr(value)}' for c, value in bound.items())}")
    given = [*(p.name for p in program.parameters), *(f"{c}=…" for c in open_constants)]
    lines.append(f"call: {name}({', '.join(given)})")
    dims = _dims(program)
    shape = f" --shape {','.join(f'{dim}=512' for dim in dims)}" if dims else ""
    sets = "".join(f" --set {c}=…" for c in open_constants)
    lines.append(f"look: tilewright inspect {shlex.quote(f'{path}:{name}')}{shape}{sets}")
    return "\n    ".join(lines)


def _dims(program: Program) -> list[str]:
    """Return the names of all dimensions, each once."""
    return list(dict.fromkeys(dim for parameter in program.parameters for dim in parameter.named))


def _declared(parameter: Parameter) -> str:
    if parameter.kind == "tensor":
        return f"{parameter.name} ({', '.join(parameter.dims)})" if parameter.dims else parameter.name
    return f"{parameter.name}: {'int' if parameter.kind == 'index' else parameter.dtype}"


def _extents(shape: str, program: Program) -> dict[str, int]:
    given = read_shape(shape)
    for parameter in program.parameters:
        if parameter.kind == "tensor" and not parameter.dims:
            raise LaunchError(
                f"kernel {program.name} does not name the dimensions of {parameter.name}; "
                f'e.g. @tw.kernel({parameter.name}="M K")'
            )
    require_extents(given, _dims(program))
    return given


def _dtypes(names: str, program: Program) -> dict[str, DType]:
    tensors = [parameter.name for parameter in program.parameters if parameter.kind == "tensor"]
    if "=" not in names:
        return dict.fromkeys(tensors, dtype(names))
    pairs = [part.partition("=") for part in names.split(",")]
    given = {name.strip(): dtype(value.strip()) for name, _, value in pairs}
    if missing := [name for name in tensors if name not in given]:
        raise LaunchError(
            f"no dtype for {', '.join(missing)}; give --dtype {','.join(f'{n}=…' for n in tensors)}"
        )
    return given


def read_constants(texts: Sequence[str], module: ModuleType) -> dict[str, Any]:
    """Evaluate ``NAME=EXPRESSION`` texts among the names of a module.

    Raises:
        LaunchError: a text has another form, or its expression raises.
    """
    names = {"tw": sys.modules["tilewright"], **vars(module)}
    given: dict[str, Any] = {}
    for text in texts:
        name, equals, expression = text.partition("=")
        if not equals or not name.isidentifier():
            raise LaunchError(
                f"--set {text!r} means nothing; give NAME=EXPRESSION, e.g. --set 'tile=(64,64,32)'"
            )
        try:
            given[name] = eval(expression, dict(names))
        except Exception as error:  # the expression may raise anything
            raise LaunchError(f"--set {text!r}: {told(error, str(module.__file__))}") from error
    return given


def load(path: Path) -> ModuleType:
    """Import a file, which may import modules of its folder or its package.

    Raises:
        LaunchError: the file does not exist, or raises; shows the file's line.
    """
    try:
        there = path.is_file()
    except OSError as error:
        raise LaunchError(f"{path}: {error.strerror or error}") from None
    if not there:
        raise LaunchError(f"{path}: no such file")
    path = Path(os.path.abspath(path))
    # A file of a package is imported with the package's name, unless another module has that name.
    folder, parts = path.parent, [path.stem]
    while (folder / "__init__.py").is_file():
        folder, parts = folder.parent, [folder.name, *parts]
    known = getattr(sys.modules.get(parts[0]), "__file__", None)
    is_taken = parts[0] in sys.modules and not str(known or "").startswith(f"{folder / parts[0]}{os.sep}")
    is_packaged = len(parts) > 1 and not is_taken and all(part.isidentifier() for part in parts)
    if not is_packaged:
        folder = path.parent
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))
    try:
        if is_packaged:
            return importlib.import_module(".".join(parts))
        name = f"inspected_{path.stem}"
        spec = importlib.util.spec_from_file_location(name, path)
        if spec is None or spec.loader is None:
            raise LaunchError(f"{path}: not a Python file")
        module = importlib.util.module_from_spec(spec)
        sys.modules[name] = module
        spec.loader.exec_module(module)
        return module
    except SystemExit:
        near = "put everything except the kernel definitions under `if __name__ == '__main__':`"
        text = f"{path}: ends the program when it is imported; {near}"
        raise LaunchError(text) from None
    except Exception as error:  # the file may raise anything
        raise LaunchError(f"{path}: {told(error, str(path))}") from error
