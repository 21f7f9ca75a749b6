"""The matrices of `tilewright gemm` and its relatives: random, described, or read from files."""

from __future__ import annotations

import io
import math
import os
import re
import stat
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from tilewright.argument_checks import read_whole
from tilewright.checking.sample import INITS, Operands, operands
from tilewright.cli.console import UsageError, choose, size
from tilewright.dtypes import DType, dtype, f8e5m2
from tilewright.errors import LOOSELY_CLOSE, DTypeError, nearest_name
from tilewright.runtime.outputs import output
from tilewright.schedule.question import SUPPORTED
from tilewright.targets.target import TARGETS
from tilewright.tune.machine import memory_bytes

# ---------------------------------------------------------------- arrays in files of NumPy's format


Array = npt.NDArray[Any]

NO_NUMBERS = "not a .npy file of numbers; write one with numpy.save"

LONGEST_HEADER = 1 << 16


def read(path: Path) -> Array:
    """Return the array of a file. bf16 and fp8 are opaque elements (kind ``"V"``); only f8e5m2 is named.

    Raises:
        UsageError: the file is missing, damaged, or of another format.
    """
    try:
        with path.open("rb") as file:
            return _array(path, file)
    except FileNotFoundError:
        raise UsageError(f"{path}: no such file") from None
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror or error}") from None


def write(path: Path, array: Array) -> None:
    """Write a .npy file.

    Raises:
        OutputError: the file cannot be written; nothing of it is.
    """
    with output(path) as file:
        np.lib.format.write_array(file, np.asarray(array), allow_pickle=False)


def _array(path: Path, file: io.BufferedReader) -> Array:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # headers of Python 2 are read like others
            shape, columns, element = _header(file)
    except UsageError:
        raise
    except Exception as error:  # NumPy may raise anything for a damaged header
        raise UsageError(f"{path}: {NO_NUMBERS}") from error
    if element.hasobject or element.subdtype is not None or element.names or element.kind not in "biufcV":
        raise UsageError(f"{path}: {NO_NUMBERS}")
    if element.itemsize == 0 or not all(0 <= extent < 2**63 for extent in shape):
        raise UsageError(f"{path}: is damaged: its header says shape {shape} of {element}")
    wanted = math.prod(shape) * element.itemsize
    present = memory_bytes()
    if present is not None and wanted > present:
        raise UsageError(f"{path}: takes {size(wanted)}; this machine has {size(present)}")
    content = _bytes(file, wanted)
    if len(content) < wanted:
        raise UsageError(
            f"{path}: is cut short: its header says shape {shape} of {element}, {wanted} bytes, "
            f"and {len(content)} are there"
        )
    order: Any = "F" if columns else "C"
    try:
        return np.frombuffer(content, element).reshape(shape, order=order)
    except ValueError as error:  # too many dimensions, or an empty array with too long ones
        raise UsageError(f"{path}: is damaged: its header says shape {shape} of {element}") from error


def _header(file: io.BufferedReader) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    """Return the shape, whether the first dimension is the fastest, and the element type."""
    version = np.lib.format.read_magic(file)
    counts = {(1, 0): 2, (2, 0): 4}
    if version not in counts:
        raise ValueError(f"version {version}")
    count = file.read(counts[version])
    if int.from_bytes(count, "little") > LONGEST_HEADER:
        raise ValueError("a header without an end")
    text = file.read(int.from_bytes(count, "little"))
    # NumPy cannot read the name that ml_dtypes gives f8e5m2; no other dtype has this name.
    known = text.replace(b"'descr': '<f1'", b"'descr': '|V1'")
    parse = (
        np.lib.format.read_array_header_1_0 if counts[version] == 2 else np.lib.format.read_array_header_2_0
    )
    shape, columns, element = parse(io.BytesIO(count + known))
    return tuple(map(int, shape)), columns, f8e5m2.numpy if known != text else element


def _bytes(file: io.BufferedReader, wanted: int) -> bytearray:
    """Read a number of bytes, or fewer if the file ends."""
    status = os.fstat(file.fileno())
    if stat.S_ISREG(status.st_mode):  # a damaged header must not allocate more than the file holds
        wanted = min(wanted, max(status.st_size - file.tell(), 0))
    content = bytearray(wanted)
    filled = 0
    with memoryview(content) as view:
        while filled < wanted and (count := file.readinto(view[filled:])):
            filled += count
    return content[:filled] if filled < wanted else content


# ---------------------------------------------------------------- matrices


LAYOUTS = ("nn", "nt", "tn", "tt")

DATA = ("elevation",)


def chosen_dtype(name: str) -> DType:
    """Return the dtype that a user names.

    Raises:
        UsageError: the name is unknown, or the GEMM does not multiply this dtype; names the nearest.
    """
    try:
        found = dtype(name)
    except DTypeError:
        near = nearest_name(name, SUPPORTED, LOOSELY_CLOSE) or SUPPORTED[1]
        raise UsageError(
            f"unknown dtype {name!r}; nearest: {near}; choose one of {', '.join(SUPPORTED)}"
        ) from None
    return _multiplied(found)


def _multiplied(found: DType, where: str = "") -> DType:
    if found.name in SUPPORTED:
        return found
    nearest = "f64" if found.kind in ("int", "uint") else "f32"
    if found.components == 2:
        where += "complex numbers are multiplied by `tilewright complex`; "
    raise UsageError(
        f"{where}no GEMM for {found} yet; nearest: --dtype {nearest}; choose one of {', '.join(SUPPORTED)}"
    )


def gather(
    given: list[str],
    *,
    target: str,
    dtype_name: str | None,
    layout: str | None,
    init: str,
    data: str | None,
    seed: int,
) -> Operands:
    """Return the matrices that the command line asks for.

    Args:
        given: ``M N K`` or ``MxNxK``, two file names, or nothing.
        target: the target that multiplies them.
        dtype_name: element type; None: f32, or the dtype of the files.
        layout: how A and B are stored; None: ``"nn"``, or as in the files.
        init: what fills matrices that are not read from files.
        data: a set of measurements, or None.
        seed: seed of the random numbers.

    Raises:
        UsageError: the request cannot be served; says what to ask instead.
    """
    if layout is not None:
        choose("layout", layout, LAYOUTS)
    if data is not None:
        choose("data", data, DATA)
    choose("init", init, INITS)
    measured = data or (init if init in DATA else None)
    if measured is not None:
        if given:
            raise UsageError(f"{measured} has its own shape; leave {' '.join(given)} out")
        return operands(measured, chosen_dtype(dtype_name or "f32"), layout=layout)
    if len(given) == 2 and not all(text.isdigit() for text in given):
        made = _read(Path(given[0]), Path(given[1]), dtype_name)
        return made.stored(layout) if layout else made
    shape = extents_of(given, "gemm") if given else TARGETS[target].shape
    element = chosen_dtype(dtype_name or "f32")
    check_memory(shape, element)
    return operands(init, element, shape, seed=seed, layout=layout)


def extents_of(given: list[str], verb: str) -> tuple[int, int, int]:
    """Return the extents M, N and K.

    Args:
        given: ``M N K`` or ``MxNxK``.
        verb: the command that takes them; only `gemm` takes files too.

    Raises:
        UsageError: another number of extents, or one that is not a positive integer.
    """
    texts = (
        given[0].split("x")
        if len(given) == 1 and re.fullmatch(r"[^./\\]+x[^./\\]+x[^./\\]+", given[0])
        else given
    )
    if len(texts) != 3:
        files = ", or two files a.npy b.npy" if verb == "gemm" else ""
        near = f"give three extents M N K or MxNxK{files}, or nothing"
        text = f"{len(given)} argument{'s' * (len(given) != 1)} ({' '.join(given)}); {near}"
        raise UsageError(text)
    example = f"tilewright {verb} 512 512 512"
    found = [read_whole(name, text, example) for name, text in zip("MNK", texts, strict=True)]
    for name, extent in zip("MNK", found, strict=True):
        if extent == 0:
            raise UsageError(f"{name} is 0; the extents M N K must be positive")
    return (found[0], found[1], found[2])


def check_memory(shape: tuple[int, int, int], element: DType) -> None:
    """Refuse matrices that do not fit in memory, before the system kills a process."""
    m, n, k = shape
    # Made in f64, multiplied, and verified in f64 with a bound.
    wanted = max(m * k, k * n) * 8 + (m * k + k * n) * element.bytes + m * n * (element.bytes + 4 * 8)
    present = memory_bytes()
    if present is not None and wanted > present:
        raise UsageError(
            f"M N K = {m} {n} {k} in {element} takes {size(wanted)}; this machine has {size(present)}"
        )


# ---------------------------------------------------------------- files


def _read(path_a: Path, path_b: Path, dtype_name: str | None) -> Operands:
    asked = None if dtype_name is None else chosen_dtype(dtype_name)
    a, b = _load(path_a, asked), _load(path_b, asked)
    if a.shape[1] != b.shape[0]:
        rule = f"a (M, K) is multiplied by b (K, N), so {a.shape[1]} must equal {b.shape[0]}"
        text = f"K differs: {path_a} has shape {a.shape} and {path_b} has shape {b.shape}; {rule}"
        raise UsageError(text)
    if a.dtype != b.dtype:
        rule = "convert both, e.g. with --dtype f32"
        text = f"{path_a} holds {dtype(a.dtype)} and {path_b} holds {dtype(b.dtype)}; {rule}"
        raise UsageError(text)
    return Operands(a, b, f"{path_a} and {path_b}")


def _load(path: Path, asked: DType | None) -> Array:
    """Read a matrix from a file, and convert it to a dtype."""
    array = read(path)
    if array.ndim != 2:
        raise UsageError(f"{path}: has {array.ndim} dimensions {array.shape}; a matrix has 2")
    if 0 in array.shape:
        raise UsageError(f"{path}: is empty, shape {array.shape}; the extents M N K must be positive")
    if array.dtype.kind == "V":  # NumPy's format does not name bf16 and fp8: the user does
        count = array.dtype.itemsize
        fitting = [name for name in SUPPORTED if dtype(name).numpy.kind == "V" and dtype(name).bytes == count]
        if asked is None or asked.bytes != count:
            nearest = f"; say what they are, e.g. --dtype {fitting[0]}" if fitting else ""
            raise UsageError(
                f"{path}: holds elements of {count} bytes without a type ({array.dtype.str}){nearest}"
            )
        return array.view(asked.numpy)
    native = array.astype(array.dtype.newbyteorder("="), copy=False)
    try:
        held = dtype(native.dtype)
    except DTypeError:
        raise UsageError(f"{path}: holds {array.dtype}, which is not a supported element type") from None
    if asked is None:
        _multiplied(held, f"{path}: ")
        return native
    if held.components > 1:
        raise UsageError(f"{path}: holds complex numbers ({held}), which cannot be converted to {asked}")
    # Numbers may be rounded, but never wrapped around or made infinite.
    with np.errstate(all="ignore"):
        made: Array = native.astype(asked.numpy, copy=False)
        infinite = np.isfinite(native) & ~np.isfinite(made.astype(np.float64))
        lost = infinite if asked.is_float else made != native
    if lost.any():
        first = tuple(int(i) for i in np.argwhere(lost)[0])
        raise UsageError(f"{path}: element {list(first)} is {native[first]}, which {asked} does not hold")
    return made
