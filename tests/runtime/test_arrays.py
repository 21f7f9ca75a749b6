"""NumPy arrays and objects that are no arrays: metadata, messages, keys, streams."""

from __future__ import annotations

import timeit
from types import SimpleNamespace
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tilewright import dtypes
from tilewright.errors import LaunchError
from tilewright.runtime.arrays import ArrayInfo, current_stream, describe, exact_key, locate, stream_handle

ELEMENTS = sorted((t for t in dtypes.ALL.values() if not t.is_packed), key=str)  # others come by tw.packed


class Memory:
    """The memory that an `ArrayInfo` describes, read by NumPy."""

    def __init__(self, info: ArrayInfo) -> None:
        strides = tuple(stride * info.dtype.bytes for stride in info.strides)
        data = (info.pointer, True)
        typestr = f"|V{info.dtype.bytes}"
        face = {"shape": info.shape, "strides": strides, "data": data, "typestr": typestr, "version": 3}
        self.__array_interface__ = face


def contents(info: ArrayInfo) -> bytes:
    return np.asarray(Memory(info)).tobytes()


@st.composite
def numpy_views(draw: st.DrawFn) -> np.ndarray[Any, Any]:
    """Draw views of every kind: slices in either direction, transposes, broadcasts, new dimensions."""
    element = draw(st.sampled_from(ELEMENTS))
    shape = draw(st.lists(st.integers(0, 6), max_size=3))
    base = np.arange(np.prod(shape, dtype=int) * element.bytes, dtype=np.uint8)
    view = base.view(element.numpy).reshape(shape)
    for _ in range(draw(st.integers(0, 3))):
        match draw(st.sampled_from(["slice", "transpose", "broadcast", "new"])):
            case "slice":
                starts = [draw(st.slices(n)) for n in view.shape]
                view = view[(*starts, ...)]
            case "transpose":
                view = view.transpose(draw(st.permutations(range(view.ndim))))
            case "broadcast" if view.ndim < 5:
                view = np.broadcast_to(view, (draw(st.integers(0, 3)), *view.shape))
            case "new" if view.ndim < 5:
                view = np.expand_dims(view, draw(st.integers(0, view.ndim)))
    return view


@given(numpy_views())
def test_numpy_views(view: np.ndarray[Any, Any]) -> None:
    info = describe(view)
    face = view.__array_interface__
    assert (info.pointer, info.readonly) == face["data"]
    assert info.shape == view.shape
    assert info.dtype.numpy == view.dtype
    assert info.device == "cpu"
    assert info.owner is view
    assert contents(info) == view.tobytes()
    for extent, stride, in_bytes in zip(info.shape, info.strides, view.strides, strict=True):
        assert stride * view.itemsize == in_bytes or extent <= 1 or view.size == 0


@given(numpy_views(), numpy_views())
def test_equal_keys_mean_equal_metadata(a: np.ndarray[Any, Any], b: np.ndarray[Any, Any]) -> None:
    hash(exact_key(a))
    assert exact_key(a) == exact_key(a[...]) == locate(a)[0]
    assert locate(a)[1] == describe(a).pointer
    if exact_key(a) == exact_key(b):
        one, two = describe(a), describe(b)
        assert one.pointer % 16 == two.pointer % 16
        facts = [(i.shape, i.strides, i.dtype, i.device, i.readonly) for i in (one, two)]
        assert facts[0] == facts[1]


def test_keys_differ_in_every_part() -> None:
    base = np.zeros((4, 8), np.float32)
    frozen = base.copy()
    frozen.flags.writeable = False
    others = [
        *(base.T, base[:, :4], base[:2], base[None], base[:, ::2], base.ravel()),
        *(base.view(np.int32), base.view(np.complex64), base.reshape(-1)[1:29].reshape(4, 7), frozen),
    ]
    assert len({exact_key(array) for array in (base, *others)}) == len(others) + 1
    assert exact_key(np.zeros(3, ml_dtypes.bfloat16)) != exact_key(np.zeros(3, np.float16))


@pytest.mark.parametrize("element", ELEMENTS, ids=str)
def test_every_element_type(element: dtypes.DType) -> None:
    assert describe(np.zeros(3, element.numpy)).dtype is element


def test_aliases_of_an_element_type() -> None:
    assert describe(np.zeros(3, np.longlong)).dtype is dtypes.i64
    assert describe(np.zeros(3, np.dtype("<f4"))).dtype is dtypes.f32


def test_subclasses_of_numpy_arrays(tmp_path: Any) -> None:
    mapped = np.memmap(tmp_path / "a.bin", np.float32, "w+", shape=(3, 4))
    assert describe(mapped).strides == (4, 1)
    assert describe(mapped).pointer == mapped.__array_interface__["data"][0]


def test_a_dimension_never_stepped_along_may_have_any_stride() -> None:
    backwards = np.zeros((3, 4), np.float32)[::-1][:1]
    assert backwards.strides[0] < 0
    assert describe(backwards).strides == (0, 1)
    assert describe(np.zeros((3, 0), np.float32)[::-1]).shape == (3, 0)


def test_the_array_lives_as_long_as_its_description() -> None:
    info = describe(np.arange(1000))
    assert contents(info) == np.arange(1000).tobytes()


PACKED = np.zeros(4, [("a", np.int8), ("b", np.float32)])
MESSAGES = [
    ([1, 2], r"builtins.list is not an array; nearest: numpy.asarray\(it\)"),
    (1.5, r"builtins.float is not an array; nearest: numpy.asarray\(it\)"),
    (None, r"builtins.NoneType is not an array; nearest: numpy.asarray\(it\)"),
    (np.float32(1), r"numpy.float32 is not an array; nearest: numpy.asarray\(it\)"),
    (np.zeros(3, "M8[s]"), r"elements of type datetime64\[s\] are not supported; known: f64, f32, .*"),
    (np.zeros(3, ml_dtypes.float8_e3m4), "elements of type float8_e3m4 are not supported; known: .*"),
    (np.zeros(3, object), "elements of type object are not supported; known: .*"),
    (np.zeros(3, ">f4"), r"elements dtype\('>f4'\) have the other byte order; nearest: array.astype\(.*\)"),
    (
        np.ndarray((4,), np.float32, bytearray(20), 0, (5,)),
        (
            r"stride 5 bytes of dimension 0 is no multiple of the 4 bytes of an element; nearest: "
            r"np.ascontiguousarray\(array\) for an input; for an output, pass a contiguous "
            r"array and copy it back: .*"
        ),
    ),
    (
        np.ndarray((4,), np.float32, bytearray(20), 16, (-5,)),
        r"stride -5 bytes of dimension 0 is no multiple of the 4 bytes of an element; nearest: .*",
    ),
    (PACKED["b"], r"(address|stride) .* is no multiple of the 4 bytes of .*; nearest: .*"),
    (
        np.frombuffer(bytearray(17), np.float32, 4, 1),
        r"address 0x\w+ is no multiple of the 4 bytes of f32; nearest: a copy",
    ),
    (np.ma.masked_array([1.0, 2.0], [True, False]), r"a masked array's .*; nearest: array.filled\(\)"),
]


@pytest.mark.parametrize(("array", "message"), MESSAGES)
def test_messages(array: object, message: str) -> None:
    with pytest.raises(LaunchError, match=f"^{message}$"):
        describe(array)
    with pytest.raises(LaunchError, match=f"^A: {message}$"):
        describe(array, "A")


def test_no_array_has_no_key() -> None:
    with pytest.raises(LaunchError, match="not an array"):
        exact_key([1, 2])
    with pytest.raises(LaunchError, match="not an array"):
        locate([1, 2])


def test_complex_parts_need_the_alignment_of_one_part_only() -> None:
    assert describe(np.zeros(9, np.float32)[1:].view(np.complex64)).dtype is dtypes.c64


def test_a_key_is_cheap() -> None:
    array = np.zeros((128, 128), np.float16)
    best = min(timeit.repeat(lambda: exact_key(array), number=2000, repeat=5)) / 2000
    assert best < 20e-6, "far above a microsecond, on any machine"


# Streams.


@pytest.mark.parametrize(
    "stream",
    [
        *(7, SimpleNamespace(cuda_stream=7), SimpleNamespace(ptr=7)),
        *(SimpleNamespace(__cuda_stream__=lambda: (0, 7)), SimpleNamespace(__cuda_stream__=(0, 7))),
        SimpleNamespace(__cuda_stream__=lambda: (0, 7), ptr=8),
    ],
)
def test_stream_handles(stream: object) -> None:
    assert stream_handle(stream) == 7


@pytest.mark.parametrize("stream", ["7", None, True, -1, object(), SimpleNamespace(ptr="7")])
def test_no_stream(stream: object) -> None:
    with pytest.raises(LaunchError, match=r"^stream=.* is no CUDA stream; nearest: its handle as an integer"):
        stream_handle(stream)


def test_numpy_has_no_stream() -> None:
    array = np.zeros(3)
    assert current_stream("cpu", [array]) == 0
    assert current_stream(("cuda", 0), [array]) == 0
    assert current_stream(("cuda", 0), []) == 0
