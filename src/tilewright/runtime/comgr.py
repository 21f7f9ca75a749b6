"""Compiling for AMD GPUs by the library that ROCm's hiprtc compiles with, libamd_comgr; by ctypes.

hiprtc gives a code object alone.  The library behind it takes the same steps one by one, so that the listing
comes first here too: text to bitcode, bitcode to listing; listing to object file, object file to code object.

Source: AMD, "Code Object Manager API", `amd_comgr.h` of versions 2 and 3.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache

from tilewright.errors import ToolchainError
from tilewright.runtime.shared_objects import SharedObject

LIBRARY, VERSIONS = "libamd_comgr.so", (3, 2)

SIGNATURES = {
    "amd_comgr_get_version": "*z *z",
    "amd_comgr_create_data": "i *U",
    "amd_comgr_set_data": "U z p",
    "amd_comgr_set_data_name": "U s",
    "amd_comgr_get_data": "U &z p",
    "amd_comgr_release_data": "U",
    "amd_comgr_create_data_set": "*U",
    "amd_comgr_data_set_add": "U U",
    "amd_comgr_destroy_data_set": "U",
    "amd_comgr_create_action_info": "*U",
    "amd_comgr_destroy_action_info": "U",
    "amd_comgr_action_info_set_language": "U i",
    "amd_comgr_action_info_set_isa_name": "U s",
    "amd_comgr_action_info_set_option_list": "U p z",
    "amd_comgr_action_info_set_logging": "U i",
    "amd_comgr_do_action": "i U U U",
    "amd_comgr_action_data_count": "U i *z",
    "amd_comgr_action_data_get_data": "U i z *U",
}
"""Every function that is called, in the words of `tilewright.runtime.shared_objects`."""

_SOURCE, _LOG, _BITCODE, _OBJECT, _CODE_OBJECT = 1, 5, 6, 7, 8
_TO_BITCODE, _TO_LISTING, _TO_OBJECT, _TO_CODE_OBJECT, _HIP = range(5)
_NUMBERS = {2: (2, 7, 10, 9, 4), 3: (2, 5, 8, 7, 3)}
"""The numbers of four actions and of the language, by the library's version."""

_one_at_a_time = threading.Lock()
"""LLVM's options are the process's."""


class RefusedError(Exception):
    """The library refused what it was given; says why in its own words."""


@lru_cache(maxsize=1)
def library() -> SharedObject:
    """The library, loaded.

    Raises:
        ToolchainError: it is not there, or of a version that is not known.
    """
    found = SharedObject(LIBRARY, VERSIONS, SIGNATURES)
    major, minor = found.amd_comgr_get_version()[1:]
    if major not in _NUMBERS:
        raise ToolchainError(f"{found.path} is version {major}.{minor}; 2 and 3 are known")
    return found


def version() -> str:
    """The library's version."""
    major, minor = library().amd_comgr_get_version()[1:]
    return f"{major}.{minor}"


def listing(text: str, arch: str, options: Sequence[str]) -> str:
    """The listing of HIP text.

    Args:
        text: the source, without includes.
        arch: e.g. ``"gfx942"``.
        options: of the compiler.

    Raises:
        RefusedError: the library refused the text.
        ToolchainError: it is not there.
    """
    with _one_at_a_time:
        bitcode = _act(_TO_BITCODE, (_SOURCE, "kernel.hip", text.encode()), _BITCODE, arch, options)
        code = [option for option in options if option.startswith(("-O", "-mcode-object"))]
        return _act(_TO_LISTING, (_BITCODE, "kernel.bc", bitcode), _SOURCE, arch, code).decode()


def code_object(assembly: str, arch: str, options: Sequence[str]) -> bytes:
    """The code object of a listing.

    Args:
        assembly: the listing.
        arch: the architecture that it was compiled for.
        options: of the assembler.

    Raises:
        RefusedError: the library refused the listing.
        ToolchainError: it is not there.
    """
    given = _SOURCE, "kernel.s", assembly.encode()
    with _one_at_a_time:
        made = _act(_TO_OBJECT, given, _OBJECT, arch, options)
        return _act(_TO_CODE_OBJECT, (_OBJECT, "kernel.o", made), _CODE_OBJECT, arch, ())


def _call(name: str, *arguments: object) -> int:
    """Call a function; gives back its last result, a handle or a number."""
    status, *values = getattr(library(), f"amd_comgr_{name}")(*arguments)
    if status:
        raise ToolchainError(f"{LIBRARY}: {name} failed with status {status}")
    return values[-1] if values else 0


def _act(action: int, given: tuple[int, str, bytes], wanted: int, arch: str, options: Sequence[str]) -> bytes:
    """One step: what it makes of what it is given."""
    numbers = _NUMBERS[int(version().partition(".")[0])]
    with _made("data_set") as before, _made("data_set") as after, _made("action_info") as info:
        _call("action_info_set_isa_name", info, f"amdgcn-amd-amdhsa--{arch}".encode())
        _call("action_info_set_logging", info, 1)
        if action == _TO_BITCODE:
            _call("action_info_set_language", info, numbers[_HIP])
        words = (ctypes.c_char_p * max(len(options), 1))(*(option.encode() for option in options))
        _call("action_info_set_option_list", info, ctypes.cast(words, ctypes.c_void_p), len(options))
        kind, name, content = given
        data = _call("create_data", kind)
        try:
            _call("set_data", data, len(content), content)
            _call("set_data_name", data, name.encode())
            _call("data_set_add", before, data)
        finally:
            _call("release_data", data)
        status, *_ = library().amd_comgr_do_action(numbers[action], info, before, after)
        if status:
            log = _first(after, _LOG).decode(errors="replace").rstrip("\x00\n")
            raise RefusedError(log or f"no output; status {status}")
        return _first(after, wanted)


@contextmanager
def _made(kind: str) -> Iterator[int]:
    """Something of the library's, given back afterwards."""
    handle = _call(f"create_{kind}")
    try:
        yield handle
    finally:
        _call(f"destroy_{kind}", handle)


def _first(made: int, kind: int) -> bytes:
    """The first content of a kind in a set; empty if there is none."""
    if not _call("action_data_count", made, kind):
        return b""
    data = _call("action_data_get_data", made, kind, 0)
    try:
        content = ctypes.create_string_buffer(_call("get_data", data, 0, None))
        _call("get_data", data, len(content), content)
        return content.raw
    finally:
        _call("release_data", data)
