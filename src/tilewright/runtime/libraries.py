"""Loading compiled code: from the very bytes that were verified, and unloading it when nobody holds it.

A file that is opened again by its path may be another one by then, and one on a file system mounted
``noexec`` cannot be loaded at all.  So the bytes go into a file in memory without a name (``memfd_create``),
or, where there is none, into a private file that lives only while it is being loaded.
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
        data: the library's bytes, which `tilewright.runtime.native.compile_library` made.
        name: what messages call it.

    Raises:
        ToolchainError: it is incomplete, or the system does not load it.
    """

    def __init__(self, data: bytes, name: str = "of a kernel") -> None:
        self.name = name
        if (problem := damage(data)) is not None:
            raise ToolchainError(f"cannot load the compiled library {name}: {problem}")
        self._library = _load(data, name)
        # Not at the interpreter's end: worker threads may still be inside.
        weakref.finalize(self, _ctypes.dlclose, self._library._handle).atexit = False

    def function(self, name: str) -> ctypes._NamedFuncPointer:
        """A function of the library; addresses are passed as integers, everything else by its C type.

        Raises:
            ToolchainError: the library has no such function.
        """
        found = self._find(name)
        found.restype = ctypes.c_longlong if name == "tilewright_run" else None
        found.argtypes = _SIGNATURES.get(name, _ENTRY)
        return found

    def address(self, name: str) -> int:
        """The address of a function."""
        return ctypes.cast(self._find(name), ctypes.c_void_p).value or 0

    def _find(self, name: str) -> ctypes._NamedFuncPointer:
        try:
            return self._library[name]
        except AttributeError:
            raise ToolchainError(f"the compiled library {self.name} has no function {name}") from None


def damage(data: bytes) -> str | None:
    """What is wrong with the bytes of a shared library; None if all parts that its headers name are there.

    The system maps a library without looking at its length: what is missing at the end is a bus error later.

    Example:
        >>> damage(b"")
        'it is empty'
    """
    if not data:
        return "it is empty"
    if not data.startswith(_ELF):
        return "it is no ELF file" if sys.platform == "linux" else None
    if len(data) < 64:
        return f"its {len(data)} bytes end within the header"
    if data[4:6] != b"\x02\x01":
        return "it is no 64-bit little-endian ELF file"
    needed = _elf_bytes(data)
    return f"it has {len(data)} of {needed} bytes" if needed > len(data) else None


def _elf_bytes(data: bytes) -> int:
    """How long an ELF file is, by its own tables of segments and sections."""
    segments, sections = struct.unpack_from("<QQ", data, 32)
    segment_size, count, section_size, section_count = struct.unpack_from("<4H", data, 54)
    end = max(segments + segment_size * count, sections + section_size * section_count)
    if end > len(data):
        return int(end)
    for at in range(segments, segments + segment_size * count, segment_size or 1):
        offset, _, _, size = struct.unpack_from("<4Q", data, at + 8)
        end = max(end, offset + size)
    return int(end)


def _load(data: bytes, name: str) -> ctypes.CDLL:
    attempts: list[Callable[[bytes], ctypes.CDLL]] = [_from_memory]
    attempts += [partial(_from_private_file, folder) for folder in _FOLDERS]
    problems = []
    for attempt in attempts:
        try:
            return attempt(data)
        except OSError as problem:
            problems.append(problem)
    reasons = "; ".join(dict.fromkeys(str(problem) for problem in problems))
    raise ToolchainError(
        f"cannot load the compiled library {name}: {reasons}; {way_out(problems[0])}"
    ) from problems[0]


def _from_memory(data: bytes) -> ctypes.CDLL:
    create: Callable[[str], int] | None = getattr(os, "memfd_create", None)
    if create is None:
        raise OSError("this system has no files in memory")
    descriptor = create("tilewright")
    try:
        _write(descriptor, data)
        return ctypes.CDLL(_spelled_anew(descriptor))
    finally:
        os.close(descriptor)


def _spelled_anew(descriptor: int) -> str:
    """A path to a descriptor that was never used before: the loader takes equal paths for one library."""
    steps = "".join("/." if bit == "1" else "/" for bit in f"{next(_numbers):b}0")
    return f"/proc/self/fd{steps}/{descriptor}"


def _from_private_file(folder: str | None, data: bytes) -> ctypes.CDLL:
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
