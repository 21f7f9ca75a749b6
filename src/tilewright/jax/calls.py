"""Calls of operations and kernels inside of XLA's programs: a call's JSON text, and its launches."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from operator import index
from typing import Any, NamedTuple

import jax
import numpy as np
from jax import Array

from tilewright.dtypes import dtype
from tilewright.errors import LaunchError, shown
from tilewright.jax.handler import NAME, GpuStep, Handler, ProcessorStep, Step
from tilewright.ops.attention import attention
from tilewright.ops.attention_backward import attention_backward
from tilewright.ops.einsum import einsum
from tilewright.ops.matmul import matmul
from tilewright.ops.replay import RecordedCall, recorded_calls
from tilewright.ops.scaled import scaled_mm
from tilewright.runtime.cuda import device_count
from tilewright.runtime.executable import Prepared
from tilewright.runtime.frameworks import ArrayInfo, Strided
from tilewright.runtime.gpu_launch import PreparedGpu
from tilewright.runtime.host import PreparedCpu
from tilewright.runtime.kernel import Bound
from tilewright.runtime.packed_arrays import packed
from tilewright.targets.target import CPU, CUDA, GPU

OPERATIONS: Mapping[str, Callable[..., Any]] = {
    one.__name__: one for one in (matmul, einsum, scaled_mm, attention, attention_backward)
}
"""The operations that calls name."""

KERNELS: dict[str, Bound] = {}
"""The kernels that calls name, by the names of their operations."""

PAGE, UNIT = 32, 16
"""Arrays with the least alignment of XLA's buffers begin `UNIT` bytes after a multiple of `PAGE` bytes."""

APART = 1 << 44
"""Bytes between the placeholder addresses of arrays on a GPU."""


def number(op: str, name: str, value: Any) -> float:
    """Return a number that a kernel is compiled or called with.

    Args:
        op: the operation's name in messages.
        name: the argument.
        value: its value.

    Raises:
        LaunchError: the value is traced, so no call knows it, or it is not a real number.

    Example:
        >>> number("matmul", "alpha", 2)
        2.0
    """
    if isinstance(value, jax.core.Tracer):
        raise LaunchError(
            f"tilewright.jax.{op}: {name} is traced, and calls are made with numbers",
            f"a product with the array, or static_argnames={name!r} of jax.jit",
        )
    try:
        return float(value)
    except (TypeError, ValueError):
        raise LaunchError(f"tilewright.jax.{op}: {name}={shown(value)}", "a real number") from None


def integer(op: str, name: str, value: Any) -> int:
    """Return an integer that a kernel is compiled or called with, of Python, NumPy or JAX; 1 for True.

    Args:
        op: the operation's name in messages.
        name: the argument.
        value: its value.

    Raises:
        LaunchError: a traced value, which no call knows, or no integer.

    Example:
        >>> integer("attention", "window", np.int64(2))
        2
    """
    if isinstance(value, jax.core.Tracer):
        raise LaunchError(
            f"tilewright.jax.{op}: {name} is traced, and calls are made with numbers",
            f"static_argnames={name!r} of jax.jit",
        )
    try:
        return int(value) if isinstance(value, np.bool_) else index(value)
    except TypeError:
        raise LaunchError(f"tilewright.jax.{op}: {name}={value!r}", "an integer") from None


def varying_axes(arrays: Sequence[Any]) -> tuple[str, ...]:
    """Return the axes of a mesh along which a `jax.shard_map` has different values of any of these arrays.

    Example:
        >>> varying_axes([np.zeros(3)])
        ()
    """
    kinds = (jax.typeof(one) for one in arrays)  # the attribute depends on JAX's version
    found = (getattr(getattr(kind, "mat", kind), "varying", getattr(kind, "vma", ())) for kind in kinds)
    return tuple(dict.fromkeys(axis for axes in found for axis in sorted(axes)))


def alike(arrays: Any) -> Any:
    """Return the arrays, marked as different along the same axes of a mesh; rules of gradients need that.

    The gradient of an array that was equal on all devices is then the sum of the devices' gradients.

    Args:
        arrays: arrays in any structure.
    """
    leaves, tree = jax.tree.flatten(arrays)
    axes = varying_axes(leaves)
    return jax.tree.unflatten(tree, [_cast(one, axes) for one in leaves]) if axes else arrays


def zeros_like(one: Array) -> Array:
    """Return zeros of the shape and dtype of an array, and varying along the same axes of a mesh.

    Example:
        >>> zeros_like(np.ones(2)).tolist()
        [0.0, 0.0]
    """
    return _cast(jax.numpy.zeros_like(one), varying_axes([one]))


def _cast(one: Any, axes: Sequence[str]) -> Any:
    missing = tuple(axis for axis in axes if axis not in varying_axes([one]))
    return jax.lax.pcast(one, missing, to="varying") if missing else one


class Read(NamedTuple):
    """An array that a call reads.

    Args:
        name: the argument of the operation, or the parameter of the kernel.
        array: the array, row-major.
        axes: order in which the operation sees the array's axes; None: as it is.
        packed: the dtype of its numbers, if each byte has two along its first axis as the operation sees it.
    """

    name: str
    array: Any
    axes: tuple[int, ...] | None = None
    packed: str | None = None


class Made(NamedTuple):
    """An array that a call writes.

    Args:
        name: the argument of the operation, or the parameter of the kernel.
        shape: its extents.
        dtype: its element type.
    """

    name: str
    shape: tuple[int, ...]
    dtype: Any


def call(op: str, operands: Sequence[Read], results: Sequence[Made], **words: Any) -> tuple[Array, ...]:
    """Call an operation or a kernel as one step of an XLA program.

    Args:
        op: its name in `OPERATIONS` or `KERNELS`.
        operands: the arrays that it reads.
        results: the arrays that it writes.
        words: its other arguments: numbers, strings, booleans and None.

    Returns:
        The results.

    Raises:
        LaunchError: an extent is not known when the program is traced.
    """
    for one in operands:
        if not all(isinstance(extent, int) for extent in one.array.shape):
            raise LaunchError(
                f"tilewright.jax.{op}: {one.name} has the shape {one.array.shape}",
                "numbers as extents, and one program for each shape",
            )
    described: dict[str, Any] = {
        "op": op,
        "operands": [
            (one.name, one.array.shape, np.dtype(one.array.dtype).name, one.axes, one.packed)
            for one in operands
        ],
        "results": [(one.name, one.shape, np.dtype(one.dtype).name) for one in results],
        "words": words,
    }
    text = json.dumps(described, sort_keys=True)
    ready()
    made = [jax.ShapeDtypeStruct(one.shape, one.dtype) for one in results]
    launch = jax.ffi.ffi_call(NAME, made, vmap_method="sequential")
    arrays = alike([one.array for one in operands])
    found = launch(*arrays, call=text, key=np.int64(number_of(text)))
    axes = varying_axes(arrays)
    return tuple(_cast(one, axes) for one in found)


def ready() -> None:
    """Make this process ready for programs that contain calls; calls of this process do it themselves.

    Raises:
        ToolchainError: there is no C++ compiler.

    Example:
        >>> ready()
    """
    _handlers()


@cache
def _handlers() -> tuple[Handler, ...]:
    """Return the handlers of this process: for processors, and for NVIDIA GPUs if it has any."""
    targets = (CPU.name, CUDA.name) if device_count() else (CPU.name,)
    return tuple(Handler(target, compiled) for target in targets)


def number_of(text: str) -> int:
    """Return the key of a call's text in the handler's table: 63 bits, as MLIR's attributes are signed."""
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "little") >> 1


# ---------------------------------------------------------------- from a text to launches


def compiled(text: str, target: str) -> tuple[int, int, int, int, Sequence[Step]]:
    """Compile the launches of a call; return the fields of the handler's record.

    Raises:
        LaunchError: the operation is not known, or the arrays do not fit it.
        DTypeError: an unsupported dtype or mixture.
    """
    described = json.loads(text)
    op, words = described["op"], described["words"]
    arrays, given = list[Any](), dict[str, Any]()

    def array(shape: Sequence[int], kind: str, axes: Sequence[int] | None = None) -> Any:
        if target == CPU.name:
            made = aligned(shape, kind)
            return made if axes is None else made.transpose(axes)
        steps = [int(np.prod(shape[at + 1 :], dtype=np.int64)) for at in range(len(shape))]
        order = range(len(shape)) if axes is None else axes
        extents, strides = (tuple(numbers[axis] for axis in order) for numbers in (shape, steps))
        address = (len(arrays) + 1) * APART + UNIT  # on the first GPU, without memory
        return Strided(None, ArrayInfo(address, extents, strides, dtype(kind), (GPU, 0), False, None))

    for name, shape, kind, axes, bits in described["operands"]:
        arrays.append(seen := array(shape, kind, axes))
        if bits is not None:
            arrays[-1] = seen = packed(seen, bits, 0)
        given[name] = seen
    operands = len(arrays)
    for name, shape, kind in described["results"]:
        arrays.append(array(shape, kind))
        given[name] = arrays[-1]
    steps, scratch = list[Step](), 0
    if op in OPERATIONS:
        for one in recorded_calls(OPERATIONS[op], **given, **words, target=target):
            if one.record is not None:
                scratch = max(scratch, one.record.scratch_bytes)
                steps += _steps(one, arrays)
    elif op in KERNELS:
        bound, named = KERNELS[op], given | words
        parameters = bound.program.parameters
        arguments = tuple(named[one.name] for one in parameters)
        plan, _ = bound.planned(arguments, target)
        places = [_place(arrays, named[one.name]) for one in parameters if one.kind == "tensor"]
        steps = [_step(plan.prepared, arguments, places)]
    else:
        known = ", ".join((*OPERATIONS, *KERNELS))
        raise LaunchError(
            f"tilewright.jax: the program calls {op}, which this process does not have",
            f"the same tilewright.jax.op before the program is loaded; there are {known}",
        )
    return number_of(text), operands, len(arrays) - operands, scratch, steps


def aligned(shape: Sequence[int], kind: str) -> np.ndarray[Any, Any]:
    """An array of zeros with the least alignment of XLA's buffers."""
    element = np.dtype(kind)
    size = element.itemsize * int(np.prod(shape, dtype=np.int64))
    memory = np.zeros(size + 2 * PAGE, np.uint8)
    start = -memory.ctypes.data % PAGE + UNIT
    return memory[start : start + size].view(element).reshape(shape)


def _steps(one: RecordedCall, arrays: Sequence[Any]) -> list[Step]:
    """Return the launches of a recorded call."""
    assert one.record is not None, "it has launches"
    made = list[Step]()
    for launch in one.record.launches:
        places = [-1 if at < 0 else _place(arrays, one.arrays[at]) for at in launch.places]
        made.append(_step(launch.prepared, one.arguments(launch), places, launch.offsets))
    return made


def _step(
    prepared: Prepared, arguments: Sequence[Any], places: Sequence[int], offsets: Sequence[int] = ()
) -> Step:
    """Return a launch in the form that the handler of its target reads."""
    offsets = offsets or (0,) * len(places)
    if isinstance(prepared, PreparedGpu):
        return GpuStep(prepared.image(arguments), places, offsets)
    assert isinstance(prepared, PreparedCpu), "handlers serve processors and GPUs"
    return ProcessorStep(prepared.image(arguments), places, offsets, prepared)


def _place(arrays: Sequence[Any], one: Any) -> int:
    return next(at for at, other in enumerate(arrays) if other is one)
