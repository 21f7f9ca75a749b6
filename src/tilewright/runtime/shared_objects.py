"""C libraries of ROCm: finding one, and calling its functions by ctypes.

A library that this process has loaded already is taken before any other, for two copies of one runtime do not
know of each other's memory; then that of ROCm's folder, then what the loader finds.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from tilewright.errors import ToolchainError
from tilewright.runtime.environment import ROCM, rocm_folder

MAPPED = Path("/proc/self/maps")
"""Where Linux lists the files that a process has loaded."""

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
    """A C library whose functions return a status; each is an attribute, called as `_Function` says.

    Args:
        name: e.g. ``"libamdhip64.so"``.
        versions: of its interface, the newest first.
        signatures: the arguments of each function, in words of `_KINDS`.
        rocm: where ROCm is installed; default: as the environment says, then where it lies as a rule.

    Raises:
        ToolchainError: there is none, or it cannot be loaded; says where it was looked for.
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
            f"ROCm's {name} is not loaded in this process, not in {looked}, and not where the loader looks "
            f"({problems[-1]}); nearest: install ROCm, or set ROCM_PATH to where it is"
        )

    def has(self, function: str) -> bool:
        """Whether this version of the library has a function."""
        return hasattr(self.library, function)

    def __getattr__(self, name: str) -> _Function:
        """A function, with what its signature says; kept as an attribute.

        Raises:
            ToolchainError: this version of the library has none of that name.
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
    """One function: called with the arguments that are given, it returns its status, then its results."""

    def __init__(self, raw: Any, signature: str) -> None:
        self.raw = raw
        words = signature.split()
        self._kinds = [(word[:-1], _KINDS[word[-1]]) for word in words]
        raw.argtypes = [ctypes.POINTER(kind) if how else kind for how, kind in self._kinds]
        raw.restype = ctypes.c_int

    def __call__(self, *arguments: Any) -> tuple[Any, ...]:
        given = iter(arguments)
        passed: list[Any] = []
        results: list[Any] = []
        for how, kind in self._kinds:
            value: Any = kind(next(given)) if how == "&" else kind() if how else next(given)
            passed.append(ctypes.byref(value) if how else value)
            if how:
                results.append(value)
        status = int(self.raw(*passed))
        return (status, *(result.value for result in results))


def _candidates(name: str, versions: tuple[int, ...], folders: list[Path]) -> Iterator[str]:
    """What to load, the preferred one first."""
    named = (name, *(f"{name}.{version}" for version in versions))
    yield from _loaded(name)
    for folder in folders:
        yield from (str(folder / "lib" / one) for one in named if (folder / "lib" / one).is_file())
    yield from reversed(named)


def _loaded(name: str) -> Iterator[str]:
    """The paths from which this process has loaded a library of a name."""
    try:
        lines = MAPPED.read_text(errors="replace").splitlines()
    except OSError:  # not Linux
        return
    paths = dict.fromkeys(line.split(maxsplit=5)[5] for line in lines if "/" in line)
    yield from (path for path in paths if Path(path).name.partition(".so")[0] + ".so" == name)
