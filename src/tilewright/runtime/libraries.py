"""Loading compiled code from verified bytes, and unloading it when its last user is gone.

A file that is opened again by its path may have been replaced, and a file system mounted ``noexec`` cannot
load code. So the bytes go into an unnamed file in memory (``memfd_create``), or else into a private file that
exists only while it is loaded.
"""

from __future__ import annotations

import _ctypes
import ctypes
import itertools
import os
import struct
import sys
import tempfile
import weakref
from collections.abc import Callable
from functools import partial
from typing import Any

from tilewright.errors import ToolchainError, way_out

_ADDRESS = ctypes.c_void_p
_ENTRY: list[Any] = [_ADDRESS, _ADDRESS, _ADDRESS, ctypes.c_longlong]
_SIGNATURES: dict[str, list[Any]] = {
    "tilewright_open": [_ADDRESS, ctypes.c_int, _ADDRESS],
    "tilewright_close": [_ADDRESS],
    "tilewright_serve": [_ADDRESS, ctypes.c_int],
    "tilewright_run": [_ADDRESS, _ADDRESS, _ADDRESS, _ADDRESS, ctypes.c_longlong],
}
_FOLDERS = (None, "/dev/shm", "/var/tmp")  # None: the temporary folder
_ELF = b"\x7fELF"
_numbers = itertools.count()


class Library:
    """A loaded shared library; it is unloaded when the object is collected.

    Args:
        data: the library's bytes, from `tilewright.runtime.native.compile_library`.
        name: what messages call it.

    Raises:
        ToolchainError: the bytes are incomplete, or the system does not load them.
    """

    def __init__(self, data: bytes, name: str = "of a kernel") -> None:
        self.name = name
        if (problem := damage(data)) is not None:
            raise ToolchainError(f"cannot load the compiled library {name}: {problem}")
        self._library = _load(data, name)
        # Not at the interpreter's end: worker threads may still be inside.
        weakref.finalize(self, _ctypes.dlclose, self._library._handle).atexit = False

    def function(self, name: str) -> ctypes._NamedFuncPointer:
        """Return a function of the library, which takes addresses as integers.

        Raises:
            ToolchainError: the library has no such function.
        """
        found = self._find(name)
        found.restype = ctypes.c_longlong if name == "tilewright_run" else None
        found.argtypes = _SIGNATURES.get(name, _ENTRY)
        return found

    def address(self, name: str) -> int:
        """Return the address of a function."""
        return ctypes.cast(self._find(name), ctypes.c_void_p).value or 0

    def _find(self, name: str) -> ctypes._NamedFuncPointer:
        try:
            return self._library[name]
        except AttributeError:
            raise ToolchainError(f"the compiled library {self.name} has no function {name}") from None


def damage(data: bytes) -> str | None:
    """Return a fault of the bytes of a shared library; None if all parts in its headers are present.

    The system maps a library without checking its length; missing bytes would be a bus error later.

    Example:
        >>> damage(b"")
        'it is empty'
    """
    if not data:
        return "it is empty"
    if not data.startswith(_ELF):
        return "it is not an ELF file" if sys.platform == "linux" else None
    if len(data) < 64:
        return f"its {len(data)} bytes are fewer than a header"
    if data[4:6] != b"\x02\x01":
        return "it is no 64-bit little-endian ELF file"
    # The length of the file, from its tables of segments and sections.
    segments, sections = struct.unpack_from("<QQ", data, 32)
    segment_size, count, section_size, section_count = struct.unpack_from("<4H", data, 54)
    end = max(segments + segment_size * count, sections + section_size * section_count)
    if end <= len(data):
        for at in range(segments, segments + segment_size * count, segment_size or 1):
            offset, _, _, size = struct.unpack_from("<4Q", data, at + 8)
            end = max(end, offset + size)
    return f"it has {len(data)} of {end} bytes" if end > len(data) else None


def _load(data: bytes, name: str) -> ctypes.CDLL:
    """Load a library from a file in memory, else from a private file in one of some folders."""
    attempts: list[Callable[[], ctypes.CDLL]] = [partial(_from_memory, data)]
    attempts += [partial(_from_folder, data, folder) for folder in _FOLDERS]
    problems = []
    for attempt in attempts:
        try:
            return attempt()
        except OSError as problem:
            problems.append(problem)
    reasons = "; ".join(dict.fromkeys(str(problem) for problem in problems))
    raise ToolchainError(
        f"cannot load the compiled library {name}: {reasons}; {way_out(problems[0])}"
    ) from problems[0]


def _from_memory(data: bytes) -> ctypes.CDLL:
    create: Callable[[str], int] | None = getattr(os, "memfd_create", None)
    if create is None:
        raise OSError("this system does not support in-memory files")
    descriptor = create("tilewright")
    try:
        _write(descriptor, data)
        # The loader takes equal paths for one library, so each path to a descriptor is spelled differently.
        steps = "".join("/." if bit == "1" else "/" for bit in f"{next(_numbers):b}0")
        return ctypes.CDLL(f"/proc/self/fd{steps}/{descriptor}")
    finally:
        os.close(descriptor)


def _from_folder(data: bytes, folder: str | None) -> ctypes.CDLL:
    descriptor, path = tempfile.mkstemp(suffix=".so", prefix="tilewright-", dir=folder)
    try:
        try:
            _write(descriptor, data)
        finally:
            os.close(descriptor)
        return ctypes.CDLL(path)
    finally:
        os.unlink(path)


def _write(descriptor: int, data: bytes) -> None:
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(descriptor, rest) :]
