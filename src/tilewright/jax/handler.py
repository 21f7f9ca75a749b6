"""The handlers of XLA's calls: C++ that runs recorded launches on XLA's buffers, threads and streams.

One handler serves processors and one NVIDIA GPUs.  A handler is compiled once, from XLA's own header, the
files in ``text``, and for GPUs the launch code of exported kernels.  A call carries its description as a text
and a number for it.  When XLA loads a program, the handler asks Python to compile the calls that it does not
know; running them needs no Python.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol

import jax

from tilewright.errors import LaunchError
from tilewright.ir.kernel import TensorMap
from tilewright.runtime.cache import Cache, key
from tilewright.runtime.gpu_launch import GpuImage
from tilewright.runtime.host import LaunchImage
from tilewright.runtime.libraries import Library
from tilewright.runtime.native import compile_library, toolchain_id
from tilewright.shipping.folder import TEXTS
from tilewright.shipping.launch_text import MAP_TYPES, MOST_ARGUMENTS, MOST_BUFFER_BYTES, MOST_SPACES
from tilewright.targets.target import CPU, CUDA, HOST

NAME = "tilewright"
"""Name of the handlers in XLA's programs."""

PLATFORMS = {CPU.name: HOST, CUDA.name: "CUDA"}
"""XLA's platform of each target that has a handler."""

_TEXTS = Path(__file__).with_name("text")

_MOST_ARRAYS = 64
"""Most arrays of one kernel, as in `text/gpus.cpp`."""

_COMPILE = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p, ctypes.c_size_t)

_TAKES_ADDRESS = ctypes.CFUNCTYPE(None, ctypes.c_void_p)


class _Address(ctypes.Structure):
    """Place in the arguments to which the address of a buffer is written: `Address` in C++."""

    _fields_ = (("at", ctypes.c_longlong), ("place", ctypes.c_longlong), ("offset", ctypes.c_longlong))


class _Space(ctypes.Structure):
    """A workspace of a launch: `Space` in C++."""

    _fields_ = (("at", ctypes.c_longlong), ("bytes", ctypes.c_longlong), ("zeroed", ctypes.c_longlong))


class _LaunchFields(ctypes.Structure):
    """One launch on a processor: `Launch` in `text/processors.cpp`."""

    _fields_ = (
        ("entry", ctypes.c_void_p),
        ("blocks", ctypes.c_longlong),
        ("scratch_bytes", ctypes.c_longlong),
        ("arguments", ctypes.c_void_p),
        ("argument_bytes", ctypes.c_longlong),
        ("addresses", ctypes.c_void_p),
        ("address_count", ctypes.c_longlong),
        ("spaces", ctypes.c_void_p),
        ("space_count", ctypes.c_longlong),
        ("block_ns", ctypes.c_longlong),
    )


class _Record(ctypes.Structure):
    """The launches of a call: `Record` in C++."""

    _fields_ = (
        ("key", ctypes.c_ulonglong),
        ("next", ctypes.c_void_p),
        ("operands", ctypes.c_longlong),
        ("results", ctypes.c_longlong),
        ("scratch_bytes", ctypes.c_longlong),
        ("launches", ctypes.c_void_p),
        ("launch_count", ctypes.c_longlong),
    )


class Step(Protocol):
    """One launch of a call for a handler."""

    fields: Any
    """The C++ structure of the launch."""


class ProcessorStep:
    """One launch of a call on a processor.

    Args:
        image: the launch.
        places: for each array of the kernel the number of the call's buffer, operands before results; -1 for
            scratch memory.
        offsets: bytes to add to the addresses of these buffers.
        holds: an object that keeps the machine code loaded.
    """

    def __init__(
        self, image: LaunchImage, places: Sequence[int], offsets: Sequence[int], holds: object
    ) -> None:
        written = [(to, places[at], offsets[at]) for at, to in image.addresses.items()]
        self._addresses = (_Address * max(len(written), 1))(*(_Address(*one) for one in written))
        spaces = image.workspaces
        self._spaces = (_Space * max(len(spaces), 1))(*(_Space(*one) for one in spaces))
        self._arguments = ctypes.create_string_buffer(image.arguments, len(image.arguments))
        self._holds = holds
        self.fields = _LaunchFields(
            image.entry,
            image.blocks,
            image.scratch_bytes,
            ctypes.addressof(self._arguments),
            len(image.arguments),
            ctypes.addressof(self._addresses),
            len(written),
            ctypes.addressof(self._spaces),
            len(spaces),
            -1,
        )


# ---------------------------------------------------------------- launches on GPUs


class _Map(ctypes.Structure):
    """A tensor map: `Map` of exported kernels."""

    _fields_ = (
        ("at", ctypes.c_int),
        ("type", ctypes.c_int),
        ("rank", ctypes.c_int),
        ("order", ctypes.c_int * 8),
        ("box", ctypes.c_uint * 8),
        ("steps", ctypes.c_uint * 8),
        ("is_swizzled", ctypes.c_bool),
    )


class _Image(ctypes.Structure):
    """A compiled kernel: `Image` of exported kernels."""

    _fields_ = (
        ("bytes", ctypes.c_void_p),
        ("entry", ctypes.c_char_p),
        ("threads", ctypes.c_uint),
        ("shared_bytes", ctypes.c_uint),
        ("cluster", ctypes.c_uint * 3),
        ("together", ctypes.c_bool),
        ("overlaps", ctypes.c_bool),
        ("zeroed", ctypes.c_uint),
        ("arguments", ctypes.c_int),
        ("offsets", ctypes.c_void_p),
        ("count", ctypes.c_int),
        ("maps", ctypes.c_void_p),
        ("first_map", ctypes.c_int),
        ("cells", ctypes.c_void_p),
        ("allowed", ctypes.c_void_p),
    )


class _Placed(ctypes.Structure):
    """An array of a kernel: `Placed` in C++."""

    _fields_ = (
        ("place", ctypes.c_longlong),
        ("offset", ctypes.c_longlong),
        ("bits", ctypes.c_longlong),
        ("shape", ctypes.c_longlong * 8),
        ("strides", ctypes.c_longlong * 8),
    )


class _GpuLaunchFields(ctypes.Structure):
    """One launch on a GPU: `Launch` in `text/gpus.cpp`."""

    _fields_ = (
        ("image", ctypes.c_void_p),
        ("grid", ctypes.c_longlong * 3),
        ("arguments", ctypes.c_void_p),
        ("argument_bytes", ctypes.c_longlong),
        ("passed", ctypes.c_void_p),
        ("passed_count", ctypes.c_longlong),
        ("spaces", ctypes.c_void_p),
        ("space_count", ctypes.c_longlong),
        ("arrays", ctypes.c_void_p),
        ("array_count", ctypes.c_longlong),
    )


class GpuStep:
    """One launch of a call on an NVIDIA GPU.

    Args:
        image: the launch.
        places: for each array of the kernel the number of the call's buffer, operands before results; -1 for
            scratch memory.
        offsets: bytes to add to the addresses of these buffers.

    Raises:
        LaunchError: the kernel has more arrays, workspaces or arguments than the launch code takes.
    """

    def __init__(self, image: GpuImage, places: Sequence[int], offsets: Sequence[int]) -> None:
        kernel, spaces = image.kernel, image.workspaces
        for what, count, most in (
            ("arrays", len(places), _MOST_ARRAYS),
            ("workspaces", len(spaces), MOST_SPACES),
            ("arguments", len(image.offsets), MOST_ARGUMENTS),
            ("bytes of arguments", len(image.arguments), MOST_BUFFER_BYTES),
        ):
            if count > most:
                raise LaunchError(
                    f"kernel {kernel.name} has {count} {what}; calls of XLA take at most {most}"
                )
        zeroed = sum(is_zeroed << at for at, (_, _, is_zeroed) in enumerate(spaces))
        cluster = [1, 1, 1]
        for member in kernel.cluster:
            cluster[member.axis] = member.extent
        placed = [_Placed(place, offset) for place, offset in zip(places, offsets, strict=True)]
        for at, one, shape, strides in image.maps:
            placed[at].bits = one.dtype.bits
            placed[at].shape[: len(shape)], placed[at].strides[: len(shape)] = shape, strides
        held: list[Any] = [
            ctypes.create_string_buffer(image.code, len(image.code)),
            (ctypes.c_int * (len(image.offsets) + 1))(*image.offsets),
            (_Map * max(len(image.maps), 1))(*(_map(at, one) for at, one, _, _ in image.maps)),
            (ctypes.c_void_p * 1)(),
            (ctypes.c_ulonglong * 1)(),
        ]
        code, argument_offsets, maps, cells, allowed = (ctypes.addressof(one) for one in held)
        made = _Image(
            code,
            image.entry.encode(),
            kernel.threads,
            image.shared_bytes,
            (ctypes.c_uint * 3)(*cluster),
            image.together,
            kernel.waits_for_prior_grid,
            zeroed,
            len(image.offsets),
            argument_offsets,
            len(image.maps),
            maps,
            image.first_map,
            cells,
            allowed,
        )
        arguments = ctypes.create_string_buffer(image.arguments, len(image.arguments))
        passed, sizes = (
            (ctypes.c_longlong * (len(words) + 1))(*words)
            for words in (
                [word for pair in image.addresses for word in pair],
                [word for offset, size, _ in spaces for word in (offset, size)],
            )
        )
        arrays = (_Placed * max(len(placed), 1))(*placed)
        self._held = [*held, made, arguments, passed, sizes, arrays]
        self.fields = _GpuLaunchFields(
            ctypes.addressof(made),
            (ctypes.c_longlong * 3)(*image.grid),
            ctypes.addressof(arguments),
            len(image.arguments),
            ctypes.addressof(passed),
            len(image.addresses),
            ctypes.addressof(sizes),
            len(spaces),
            ctypes.addressof(arrays),
            len(placed),
        )


def _map(at: int, one: TensorMap) -> _Map:
    """Return a tensor map as exported kernels describe it.

    Raises:
        LaunchError: TMA does not move this dtype.
    """
    kind = 0 if one.dtype.bytes == 1 else MAP_TYPES.get(one.dtype.name)
    if kind is None:
        raise LaunchError(f"TMA does not support {one.dtype}")
    made = _Map(at, kind, len(one.order))
    rank = len(one.order)
    made.order[:rank], made.box[:rank], made.steps[:rank] = one.order, one.box, one.steps
    made.is_swizzled = one.is_swizzled
    return made


# ---------------------------------------------------------------- handlers

CompileCall = Callable[[str, str], tuple[int, int, int, int, Sequence[Step]]]
"""Takes the text of a call and a target; returns the call's number, the numbers of its operands and results,
its bytes of scratch memory, and its launches."""


def handler_source(target: str) -> str:
    """Return the C++ text of a target's handler."""
    shipped = ("tilewright.h", "host.cpp", "driver.cpp", "cuda.cpp")
    own = {CPU.name: "processors.cpp", CUDA.name: "gpus.cpp"}[target]
    files = [_TEXTS / "calls.cpp"]
    files += [TEXTS / name for name in shipped] if target == CUDA.name else []
    texts = [file.read_text(encoding="utf-8") for file in (*files, _TEXTS / own)]
    return "\n".join([xla_header(), *texts])


def xla_header() -> str:
    """Return XLA's header of its foreign function interface."""
    return Path(jax.ffi.include_dir(), "xla/ffi/api/c_api.h").read_text(encoding="utf-8")


class Handler:
    """The compiled handler of a target, registered with JAX.

    Args:
        target: ``"cpu"`` or ``"cuda"``.
        compile_call: compiles the calls of a program that XLA loads.
    """

    def __init__(self, target: str, compile_call: CompileCall) -> None:
        source = handler_source(target)
        address = key([source, toolchain_id()])
        entry = Cache.default().get_or_build(
            address, ".so", lambda: compile_library(source), {"kernel": "handler of XLA's calls"}
        )
        self._library = Library(entry.data, "handler of XLA's calls")
        self._held = list[Any]()
        self._target, self._compile_call = target, compile_call
        self._callback = _COMPILE(self._compiled)
        self._add = _TAKES_ADDRESS(self._library.address("tilewright_add"))
        begin = _TAKES_ADDRESS(self._library.address("tilewright_begin"))
        begin(ctypes.cast(self._callback, ctypes.c_void_p))
        stages = {
            stage: jax.ffi.pycapsule(_TAKES_ADDRESS(self.address(stage)))
            for stage in ("instantiate", "execute")
        }
        jax.ffi.register_ffi_target(NAME, stages, platform=PLATFORMS[target])

    def address(self, stage: str) -> int:
        """Return the address of a stage: ``"instantiate"`` or ``"execute"``."""
        return int(self._library.address(f"tilewright_{stage}"))

    def _compiled(self, text: int, size: int, message: int, room: int) -> int:
        """Compile a call for XLA; on failure write a message, and return 1."""
        try:
            number, operands, results, scratch, steps = self._compile_call(
                ctypes.string_at(text, size).decode(), self._target
            )
            fields = [one.fields for one in steps]
            launches = (type(fields[0]) * len(fields))(*fields) if fields else (ctypes.c_longlong * 1)()
            record = _Record(
                number, None, operands, results, scratch, ctypes.addressof(launches), len(fields)
            )
            self._held.append((steps, launches, record))
            self._add(ctypes.addressof(record))
        except Exception as error:  # noqa: BLE001 - XLA raises it with its text
            said = f"{type(error).__name__}: {error}".encode()[: room - 1] + b"\0"
            ctypes.memmove(message, said, len(said))
            return 1
        return 0
