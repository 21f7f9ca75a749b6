"""Arrays in files of NumPy's format: read with every doubt told, written whole."""

from __future__ import annotations

import io
import math
import os
import stat
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from tilewright.cli.console import UsageError, size
from tilewright.dtypes import f8e5m2
from tilewright.runtime.outputs import output
from tilewright.tune.machine import memory_bytes

Array = npt.NDArray[Any]

NO_NUMBERS = "not a .npy file of numbers; write one with numpy.save"

LONGEST_HEADER = 1 << 16


def read(path: Path) -> Array:
    """The array in a file; bf16 and fp8 are opaque elements (kind ``"V"``), but for f8e5m2, which says so.

    Raises:
        UsageError: it is no such file, or a damaged one.
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
    except Exception as error:  # whatever NumPy makes of a damaged header
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
    except ValueError as error:  # more dimensions, or without elements longer ones, than an array has
        raise UsageError(f"{path}: is damaged: its header says shape {shape} of {element}") from error


def _header(file: io.BufferedReader) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    """Shape, whether the first dimension is the fastest, and element type."""
    version = np.lib.format.read_magic(file)
    counts = {(1, 0): 2, (2, 0): 4}
    if version not in counts:
        raise ValueError(f"version {version}")
    count = file.read(counts[version])
    if int.from_bytes(count, "little") > LONGEST_HEADER:
        raise ValueError("a header without an end")
    text = file.read(int.from_bytes(count, "little"))
    # What ml_dtypes calls this dtype NumPy does not read; no other has the name.
    known = text.replace(b"'descr': '<f1'", b"'descr': '|V1'")
    parse = (
        np.lib.format.read_array_header_1_0 if counts[version] == 2 else np.lib.format.read_array_header_2_0
    )
    shape, columns, element = parse(io.BytesIO(count + known))
    return tuple(map(int, shape)), columns, f8e5m2.numpy if known != text else element


def _bytes(file: io.BufferedReader, wanted: int) -> bytearray:
    """So many bytes of a file, or as many as there are."""
    status = os.fstat(file.fileno())
    if stat.S_ISREG(status.st_mode):  # no memory is taken for what is not there
        wanted = min(wanted, max(status.st_size - file.tell(), 0))
    content = bytearray(wanted)
    filled = 0
    with memoryview(content) as view:
        while filled < wanted and (count := file.readinto(view[filled:])):
            filled += count
    return content[:filled] if filled < wanted else content
