"""Exported kernels in Python: loading a folder, calls on arrays, and the check before the first use."""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import hashlib
import json
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from tilewright.calls import launches, trim
from tilewright.dtypes import dtype
from tilewright.errors import LaunchError, WrongResultError, shown
from tilewright.ops.replay import stream_on
from tilewright.runtime.arrays import ArrayInfo, describe
from tilewright.runtime.backends import backend_for
from tilewright.runtime.binding import check_no_stream, integer, number
from tilewright.runtime.drivers import driver_for
from tilewright.runtime.environment import renew_after_fork, settings
from tilewright.runtime.gpu_memory import DeviceArray, scratch
from tilewright.runtime.libraries import Library
from tilewright.runtime.workers import INLINE_NS, Pool
from tilewright.shipping.folder import FORMAT, MANIFEST
from tilewright.shipping.launch_text import MOST_RANK, c_type
from tilewright.shipping.self_check import fault, filled
from tilewright.targets.target import CPU

CTYPES: Mapping[str, Any] = {
    "double": ctypes.c_double,
    "float": ctypes.c_float,
    "long long": ctypes.c_longlong,
    "unsigned long long": ctypes.c_ulonglong,
    "int": ctypes.c_int,
    "unsigned": ctypes.c_uint,
    "short": ctypes.c_short,
    "unsigned short": ctypes.c_ushort,
    "signed char": ctypes.c_byte,
    "unsigned char": ctypes.c_ubyte,
}
"""Types of `ctypes` by the names of C types."""


KEYS = ("name", "computes", "parameters", "classes", "kernels", "versions", "sha256")
"""Keys of a manifest that a loaded kernel reads."""

OVERLAP = 5
"""The error `TILEWRIGHT_OVERLAP` of `text/tilewright.h`."""


class CArray(ctypes.Structure):
    """The struct ``tilewright_array``."""

    _fields_ = (
        ("address", ctypes.c_void_p),
        ("shape", ctypes.c_longlong * MOST_RANK),
        ("strides", ctypes.c_longlong * MOST_RANK),
    )

    @staticmethod
    def of(info: ArrayInfo) -> CArray:
        """Describe an array."""
        return CArray(info.pointer, (*info.shape,), (*info.strides,))


class _Threads:
    """Worker threads of a loaded library, and the memory of its calls."""

    def __init__(self, library: Library) -> None:
        self._library = library
        self.renew()
        renew_after_fork(self)
        atexit.register(self.close)

    def renew(self) -> None:
        """Forget threads and memory in a forked child."""
        self._pool: Pool | None = None
        self._lock = threading.Lock()
        self._memory = threading.local()

    @contextlib.contextmanager
    def pool(self) -> Iterator[int | None]:
        """Yield the address of a pool that no other call uses; None: the calling thread computes alone."""
        if settings().threads == 1 or not self._lock.acquire(blocking=False):
            yield None
            return
        try:
            if self._pool is None:
                self._pool = Pool(self._library, settings().threads)
            yield self._pool.address
        finally:
            self._lock.release()

    def memory(self, size_bytes: int) -> int:
        """Return the address of this thread's memory, a multiple of 256 bytes."""
        held = getattr(self._memory, "held", None)
        if held is None or held.nbytes < size_bytes + 256:
            held = self._memory.held = np.empty(size_bytes + 256, np.uint8)
        return int(-(-held.ctypes.data // 256) * 256)

    def close(self) -> None:
        """End the threads when the interpreter ends."""
        pool, self._pool = self._pool, None
        if pool is not None:
            pool.close()


@launches.made("tw.load_kernel(folder) gives one")
class LoadedKernel:
    """An exported kernel; made by `load_kernel`.

    Args:
        manifest: the manifest of its folder.
        data: the shared library.
        expected: arrays of the check of an explicit kernel, by class.
        checked: whether to check a kernel before its first use.
    """

    def __init__(self, manifest: Any, data: Any, expected: Any, *, checked: bool) -> None:
        self.manifest = manifest
        self.name = str(manifest["name"])
        self._library = Library(data, self.name)
        self._parameters: list[dict[str, Any]] = manifest["parameters"]
        self._tensors = [one for one in self._parameters if one["kind"] == "tensor"]
        self._dtypes = {name: dtype(one["dtype"]) for name, one in manifest["classes"][0].items()}
        self._expected = expected
        self._threads = _Threads(self._library)
        self._wants_check, self._checked = checked, set[str]()
        self._is_long = False
        self._functions: dict[str, tuple[Any, Any]] = {}
        name_of = self._library.address("tilewright_error_text")
        self._error_text = ctypes.CFUNCTYPE(ctypes.c_char_p, ctypes.c_int)(name_of)

    @property
    def targets(self) -> tuple[str, ...]:
        """The targets that it was exported for."""
        return tuple(dict.fromkeys(one["target"] for one in self.manifest["kernels"]))

    def __repr__(self) -> str:
        names = ", ".join(one["name"] for one in self._parameters)
        archs = ", ".join(dict.fromkeys(one["arch"] for one in self.manifest["kernels"]))
        return f"<exported {self.name}({names}) for {archs}>"

    def __call__(self, *arguments: Any, target: str | None = None, stream: Any = None, **named: Any) -> str:
        """Run the kernel on the caller's arrays.

        Args:
            arguments: arrays, numbers and integers in the order of the kernel's parameters.
            target: the target; default: where the arrays lie.
            stream: the stream of a GPU; default: the current stream of the arrays' framework.
            named: arguments by name.

        Returns:
            The name of the target that ran.

        Raises:
            LaunchError: the arguments do not fit the exported classes, or the kernel was not exported for
                their device.
            WrongResultError: the check before the first use found a wrong result.
        """
        try:
            names = [one["name"] for one in self._parameters]
            by_name = dict(zip(names, arguments, strict=False))
            unknown = [name for name in named if name not in names or name in by_name]
            count = len(by_name) + len(named)
            if len(arguments) > len(names) or unknown or count < len(names):
                what = f"{unknown[0]}=" if unknown else f"{count} arguments"
                raise LaunchError(f"{self.name} takes ({', '.join(names)}), and was given {what}")
            by_name |= named
            given = [by_name[name] for name in names]
            infos = {
                one["name"]: self._described(one["name"], value)
                for one, value in zip(self._parameters, given, strict=True)
                if one["kind"] == "tensor"
            }
            backend = backend_for(self.name, [*infos.items()], target)
            if backend.name not in self.targets:
                raise LaunchError(
                    f"{self.name} was exported for {', '.join(self.targets)}, and these arrays need "
                    f"{backend.name}",
                    "tilewright export … --arch for this machine",
                )
            if self._wants_check and backend.name not in self._checked:
                self.check(backend.name)
            self._run(backend.name, "", infos, given, stream)
            return backend.name
        except Exception as error:
            trim(error)
            raise

    def check(self, target: str) -> None:
        """Compare every class of a target with the kernel's meaning, on small problems of whole numbers.

        A class is left out if no small problem of it was found at the export.

        Args:
            target: the target.

        Raises:
            LaunchError: the kernel was not exported for the architecture of this machine.
            WrongResultError: an element is wrong.
        """
        classes = len(self.manifest["classes"])
        for at in range(classes):
            rows = [
                one
                for one in self.manifest["kernels"]
                if (one["target"], one["class"]) == (target, at) and one["check"] is not None
            ]
            suffix = f"_{at}" if classes > 1 else ""
            for tried, row in enumerate(rows, 1):  # each architecture has a problem for its own divisors
                try:
                    self._check_class(target, at, suffix, row)
                    break
                except LaunchError:
                    if tried == len(rows):
                        raise
        self._checked.add(target)

    def _check_class(self, target: str, number: int, suffix: str, row: Mapping[str, Any]) -> None:
        problem, known = row["check"], self._expected.get(number)
        arrays = filled(problem, self._dtypes, known)
        before = {name: array.copy() for name, array in arrays.items()}
        numbers = {**problem["integers"], **problem["numbers"]}
        given: list[Any] = [{**numbers, **arrays}[one["name"]] for one in self._parameters]
        infos = {name: describe(array, name) for name, array in arrays.items()}
        if target == CPU.name:
            self._run(target, suffix, infos, given, None)
        else:
            # A copy of a whole buffer keeps the strides.
            driver = driver_for(target)
            assert driver is not None, "GPUs have drivers"
            buffers = {name: _spread(array) for name, array in arrays.items()}
            held = {name: DeviceArray.of(flat, driver=driver) for name, (flat, _) in buffers.items()}
            for name, one in held.items():
                there = describe(one, name)
                infos[name] = replace(there, shape=infos[name].shape, strides=infos[name].strides)
            given = [held.get(one["name"], value) for one, value in zip(self._parameters, given, strict=True)]
            self._run(target, suffix, infos, given, None)
            for name, (flat, seen) in buffers.items():
                flat[...] = held[name].host()
                arrays[name] = seen
        stored = {name: arrays[name] for name in row["writes"]}
        if wrong := fault(self.manifest["computes"], stored, before, numbers, known):
            versions = ", ".join(f"{name} {value}" for name, value in self.manifest["versions"].items())
            raise WrongResultError(
                f"{self.name}, class {number} on {target}, computes a small problem wrong: {wrong}; exported "
                f"with {versions}; nearest: export again with another compiler, and report both versions"
            )

    def _described(self, name: str, value: Any) -> ArrayInfo:
        info = describe(value, f"{self.name}, argument {name}")
        wanted, rank = self._dtypes[name], len(self.manifest["classes"][0][name]["shape"])
        if info.dtype != wanted or len(info.shape) != rank:
            text = f"{self.name}: {name} is {info.dtype} with {len(info.shape)} dimensions"
            raise LaunchError(text, f"{wanted} with {rank}")
        if info.readonly and any(name in one["writes"] for one in self.manifest["kernels"]):
            raise LaunchError(f"{self.name} writes {name}, which is read-only; pass a writable array")
        return info

    def _run(
        self, target: str, suffix: str, infos: Mapping[str, ArrayInfo], given: Sequence[Any], stream: Any
    ) -> None:
        """Launch by a function of the library."""
        held = [CArray.of(infos[one["name"]]) for one in self._tensors]
        arrays = iter([ctypes.addressof(one) for one in held])
        asked, passed = list[Any](), list[Any]()
        for one, value in zip(self._parameters, given, strict=True):
            if one["kind"] == "scalar":
                element = dtype(one["dtype"])
                stored = number(one["name"], element, value)
                passed.append(CTYPES[c_type(element)].from_buffer_copy(stored.tobytes()).value)
                continue
            word = next(arrays) if one["kind"] == "tensor" else integer(self.name, one["name"], value)
            passed.append(word)
            asked.append(word)
        ask, launch = self._found(f"{self.name}_{target}{suffix}")
        device = next(iter(infos.values())).device
        with contextlib.ExitStack() as stack:
            if isinstance(device, str):
                check_no_stream(stream, target)
                last = (stack.enter_context(self._threads.pool()) or 0) if self._is_long else 0
            else:
                driver = driver_for(target)
                assert driver is not None, "GPUs have drivers"
                arrays_given = [
                    value for one, value in zip(self._parameters, given, strict=True) if one in self._tensors
                ]
                last, _ = stream_on(device, arrays_given, stream)
                stack.enter_context(driver.current(device[1]))
            needed = ctypes.c_ulonglong()
            self._raise(ask(*asked, last, ctypes.addressof(needed)), infos)
            if isinstance(device, str):
                memory = self._threads.memory(needed.value)
            else:
                memory = stack.enter_context(scratch(max(needed.value, 1), device, last))
            start = time.perf_counter_ns()
            error = launch(*passed, memory, needed.value, last)
            self._is_long = time.perf_counter_ns() - start > INLINE_NS
            self._raise(error, infos)

    def _found(self, name: str) -> tuple[Any, Any]:
        """Return the functions that ask for the bytes of a workspace, and that launch."""
        found = self._functions.get(name)
        if found is None:
            asked, passed = list[Any](), list[Any]()
            for one in self._parameters:
                if one["kind"] == "scalar":
                    passed.append(CTYPES[c_type(dtype(one["dtype"]))])
                    continue
                kind: Any = ctypes.c_void_p if one["kind"] == "tensor" else ctypes.c_int
                passed.append(kind)
                asked.append(kind)
            ask = ctypes.CFUNCTYPE(ctypes.c_int, *asked, ctypes.c_void_p, ctypes.c_void_p)
            more = (ctypes.c_void_p, ctypes.c_ulonglong, ctypes.c_void_p)
            launch = ctypes.CFUNCTYPE(ctypes.c_int, *passed, *more)
            address = self._library.address
            found = self._functions[name] = ask(address(f"{name}_workspace")), launch(address(name))
        return found

    def _raise(self, error: int, infos: Mapping[str, ArrayInfo]) -> None:
        """Raise an error of the library."""
        if not error:
            return
        text, at = (self._error_text(error) or b"").decode(), error >> 8
        where, legal = "", None
        if at:
            name = self._tensors[at - 1]["name"]
            info = infos[name]
            legal = "; ".join(
                dict.fromkeys(_class_text(name, one["arrays"][name]) for one in self.manifest["kernels"])
            )
            where = f": {name} has shape {info.shape}, strides {info.strides}, address {shown(info.pointer)}"
            legal = "a result in memory of its own" if error & 255 == OVERLAP else legal
        raise LaunchError(f"{self.name}: {text}{where}", legal)


def _spread(array: Any) -> tuple[Any, Any]:
    """Return a flat buffer with the elements of an array, and the array in it, with the same strides."""
    pairs = zip(array.shape, array.strides, strict=True)
    span = sum((extent - 1) * stride for extent, stride in pairs) // array.itemsize + 1
    flat = np.zeros(span, array.dtype)
    seen = np.lib.stride_tricks.as_strided(flat, array.shape, array.strides)
    seen[...] = array
    return flat, seen


def _class_text(name: str, one: Mapping[str, Any]) -> str:
    unit = "" if one["unit_dim"] is None else f"stride 1 along dimension {one['unit_dim']}, "
    return (
        f"{name} with {unit}extents of multiples of {tuple(one['extent_divisors'])}, strides of multiples of "
        f"{tuple(one['stride_divisors'])}, aligned to {one['align']} bytes"
    )


def load_kernel(folder: str | Path, *, check: bool = True) -> LoadedKernel:
    """Load a kernel that `tilewright export` wrote; nothing is traced or compiled.

    Args:
        folder: the folder.
        check: whether to compare each class with the kernel's meaning before the first call on a target, on a
            small problem of whole numbers.

    Returns:
        A function of the kernel's arrays and numbers.

    Raises:
        LaunchError: the folder has no manifest, another version's, or files that were changed.

    Example:
        >>> import tempfile
        >>> import numpy as np
        >>> import tilewright as tw
        >>> @tw.kernel(X="N", Y="N", by=tw.f32)
        ... def scale(X, Y, by):
        ...     n = tw.block_index(tw.ceil_div(X.shape[0], 64))
        ...     tw.copy(tw.load(X.tile((64,), (n,)).partition((32,))) * by, Y.tile((64,), (n,)))
        >>> folder = tempfile.mkdtemp()
        >>> arrays = [tw.like("f32", 99), tw.like("f32", 99), None]
        >>> _ = tw.shipping.folder.export(scale.bind(), [arrays], ["x86-64"], folder)
        >>> scaled = tw.load_kernel(folder)
        >>> x, y, z = np.arange(70, dtype=np.float32), np.empty(70, np.float32), np.empty(70, np.float32)
        >>> scaled(x, y, 0.5), float(y[69])
        ('cpu', 34.5)
        >>> scale(x, z, 0.5, target="reference").target, bool((y == z).all())
        ('reference', True)
    """
    place = Path(folder)
    try:
        manifest = json.loads((place / MANIFEST).read_text(encoding="utf-8"))
    except OSError as error:
        near = "nearest: a folder that `tilewright export` wrote"
        text = f"{place}: {MANIFEST}: {error.strerror or error}; {near}"
        raise LaunchError(text) from None
    except ValueError:
        manifest = None
    if not isinstance(manifest, dict) or manifest.get("format") != FORMAT:
        found = manifest.get("format") if isinstance(manifest, dict) else "none"
        raise LaunchError(f"{place}: {MANIFEST} has format {found}", f"{FORMAT}; export it again")
    if lost := [key for key in KEYS if key not in manifest]:
        raise LaunchError(f"{place}: {MANIFEST} has no {lost[0]!r}; nearest: export it again")
    name = manifest["name"]
    data = _read(place, f"lib{name}.so", manifest)
    files = [file for file in manifest["sha256"] if file.endswith(".npz")]
    expected = {}
    for file in files:
        _read(place, file, manifest)
        with np.load(place / file) as arrays:
            expected[int(file.removesuffix(".npz").rpartition("_")[2])] = dict(arrays)
    return LoadedKernel(manifest, data, expected, checked=check)


def _read(place: Path, file: str, manifest: Mapping[str, Any]) -> bytes:
    """Return the bytes of a file, checked against the hash in the manifest."""
    try:
        data = (place / file).read_bytes()
    except OSError as error:
        raise LaunchError(f"{place / file}: {error.strerror or error}; nearest: export it again") from None
    if hashlib.sha256(data).hexdigest() != manifest["sha256"].get(file):
        raise LaunchError(f"{place / file} is not the file that was exported; nearest: export it again")
    return data
