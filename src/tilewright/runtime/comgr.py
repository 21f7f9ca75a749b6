"""ROCm's C libraries through ctypes: finding and calling a library, and compiling with libamd_comgr."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from typing import Any

from tilewright.errors import ToolchainError
from tilewright.runtime.environment import ROCM, rocm_folder

# ---------------------------------------------------------------- libraries of ROCm
#
# We prefer a library that this process has already loaded, because two copies of one runtime do not share
# memory. ROCm's folder comes next, then the loader's own search.


MAPPED = Path("/proc/self/maps")
"""Linux's list of the files that a process has loaded."""

_KINDS = {
    "i": ctypes.c_int,
    "u": ctypes.c_uint,
    "z": ctypes.c_size_t,
    "U": ctypes.c_ulonglong,
    "p": ctypes.c_void_p,
    "s": ctypes.c_char_p,
    "f": ctypes.c_float,
}
"""Type codes of a signature. ``*`` marks an output, ``&`` an argument that is given and changed."""


class SharedObject:
    """A C library whose functions return a status. Each function is an attribute, a `_Function`.

    Args:
        name: e.g. ``"libamdhip64.so"``.
        versions: versions of its interface, the newest first.
        signatures: the arguments of each function, in the type codes of `_KINDS`.
        rocm: the folder of ROCm; default: from the environment, then the usual folder.

    Raises:
        ToolchainError: the library is not found or cannot be loaded; lists the places that were searched.
    """

    def __init__(
        self, name: str, versions: tuple[int, ...], signatures: Mapping[str, str], rocm: Path | None = None
    ) -> None:
        self.name = name
        self._signatures = signatures
        folders = list(dict.fromkeys([rocm] if rocm else [rocm_folder(), ROCM]))
        problems = []
        for self.path in _candidates(name, versions, folders):
            try:
                self.library = ctypes.CDLL(self.path)
                return
            except OSError as problem:
                problems.append(str(problem))
        looked = " and ".join(str(folder / "lib") for folder in folders)
        raise ToolchainError(
            f"ROCm's {name} is not loaded in this process, and neither {looked} nor the loader's path has it "
            f"({problems[-1]}); nearest: install ROCm, or set ROCM_PATH to where it is"
        )

    def has(self, function: str) -> bool:
        """Return whether this version of the library has a function."""
        return hasattr(self.library, function)

    def __getattr__(self, name: str) -> _Function:
        """Return a function with its signature, and keep it as an attribute.

        Raises:
            ToolchainError: this version of the library does not have it.
        """
        signature = self.__dict__.get("_signatures", {}).get(name)
        if signature is None:
            raise AttributeError(name)
        if not self.has(name):
            raise ToolchainError(f"{self.path} has no function {name}; nearest: a newer ROCm")
        made = _Function(getattr(self.library, name), signature)
        setattr(self, name, made)
        return made


class _Function:
    """A C function. A call takes the inputs, and returns the status and the outputs."""

    def __init__(self, raw: Any, signature: str) -> None:
        self.raw = raw
        words = signature.split()
        self._kinds = [(word[:-1], _KINDS[word[-1]]) for word in words]
        raw.argtypes = [ctypes.POINTER(kind) if how else kind for how, kind in self._kinds]
        raw.restype = ctypes.c_int

    def __call__(self, *arguments: Any) -> tuple[Any, ...]:
        given = iter(arguments)
        passed, results = list[Any](), list[Any]()
        for how, kind in self._kinds:
            value: Any = kind(next(given)) if how == "&" else kind() if how else next(given)
            passed.append(ctypes.byref(value) if how else value)
            if how:
                results.append(value)
        status = int(self.raw(*passed))
        return (status, *(result.value for result in results))


def _candidates(name: str, versions: tuple[int, ...], folders: list[Path]) -> Iterator[str]:
    """Return the paths and names to try, the preferred one first."""
    named = (name, *(f"{name}.{version}" for version in versions))
    try:
        lines = MAPPED.read_text(errors="replace").splitlines()
    except OSError:  # not Linux
        lines = []
    loaded = dict.fromkeys(line.split(maxsplit=5)[5] for line in lines if "/" in line)
    yield from (path for path in loaded if Path(path).name.partition(".so")[0] + ".so" == name)
    for folder in folders:
        yield from (str(folder / "lib" / one) for one in named if (folder / "lib" / one).is_file())
    yield from reversed(named)


# ---------------------------------------------------------------- libamd_comgr
#
# hiprtc compiles with this library, but returns only a code object. The library offers the single steps, so
# we get the listing first: text to bitcode, bitcode to listing, listing to object file, object file to code
# object.
#
# Source: AMD, "Code Object Manager API", `amd_comgr.h` of versions 2 and 3.


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
"""Signatures of the functions that we call."""

_SOURCE, _LOG, _BITCODE, _OBJECT, _CODE_OBJECT = 1, 5, 6, 7, 8
_TO_BITCODE, _TO_LISTING, _TO_OBJECT, _TO_CODE_OBJECT, _HIP = range(5)
_NUMBERS = {2: (2, 7, 10, 9, 4), 3: (2, 5, 8, 7, 3)}
"""The numbers of four actions and of the language, by the library's version."""

_one_at_a_time = threading.Lock()
"""LLVM keeps its options in global state of the process."""


class RefusedError(Exception):
    """The library refused a text; quotes its log."""


@lru_cache(maxsize=1)
def library() -> SharedObject:
    """Load the library.

    Raises:
        ToolchainError: it is missing, or its version is unknown.
    """
    found = SharedObject(LIBRARY, VERSIONS, SIGNATURES)
    major, minor = found.amd_comgr_get_version()[1:]
    if major not in _NUMBERS:
        raise ToolchainError(f"{found.path} is version {major}.{minor}; 2 and 3 are known")
    return found


def version() -> str:
    """Return the library's version."""
    major, minor = library().amd_comgr_get_version()[1:]
    return f"{major}.{minor}"


def listing(text: str, arch: str, options: Sequence[str]) -> str:
    """Compile HIP text to a listing.

    Args:
        text: the source, without includes.
        arch: e.g. ``"gfx942"``.
        options: options of the compiler.

    Raises:
        RefusedError: the library refused the text.
        ToolchainError: the library is missing.
    """
    with _one_at_a_time:
        bitcode = _act(_TO_BITCODE, (_SOURCE, "kernel.hip", text.encode()), _BITCODE, arch, options)
        code = [option for option in options if option.startswith(("-O", "-mcode-object"))]
        return _act(_TO_LISTING, (_BITCODE, "kernel.bc", bitcode), _SOURCE, arch, code).decode()


def code_object(assembly: str, arch: str, options: Sequence[str]) -> bytes:
    """Assemble and link a listing into a code object.

    Args:
        assembly: the listing.
        arch: the architecture that it was compiled for.
        options: options of the assembler.

    Raises:
        RefusedError: the library refused the listing.
        ToolchainError: the library is missing.
    """
    given = _SOURCE, "kernel.s", assembly.encode()
    with _one_at_a_time:
        made = _act(_TO_OBJECT, given, _OBJECT, arch, options)
        return _act(_TO_CODE_OBJECT, (_OBJECT, "kernel.o", made), _CODE_OBJECT, arch, ())


def _call(name: str, *arguments: object) -> int:
    """Call a function and return its last output, a handle or a number."""
    status, *values = getattr(library(), f"amd_comgr_{name}")(*arguments)
    if status:
        raise ToolchainError(f"{LIBRARY}: {name} failed with status {status}")
    return values[-1] if values else 0


def _act(action: int, given: tuple[int, str, bytes], wanted: int, arch: str, options: Sequence[str]) -> bytes:
    """Do one step: make content of one kind from a file of another."""
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
    """Create an object of the library, and destroy it afterwards."""
    handle = _call(f"create_{kind}")
    try:
        yield handle
    finally:
        _call(f"destroy_{kind}", handle)


def _first(made: int, kind: int) -> bytes:
    """Return the first content of a kind in a set; empty if the set has none."""
    if not _call("action_data_count", made, kind):
        return b""
    data = _call("action_data_get_data", made, kind, 0)
    try:
        content = ctypes.create_string_buffer(_call("get_data", data, 0, None))
        _call("get_data", data, len(content), content)
        return content.raw
    finally:
        _call("release_data", data)
