"""Tensors from DLPack capsules: their metadata, and their producers hear when they are released."""

from __future__ import annotations

import ctypes
import gc
import sys
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tilewright import dtypes
from tilewright.errors import LaunchError
from tilewright.runtime import dlpack
from tilewright.runtime.arrays import describe, exact_key, locate

pytestmark = pytest.mark.in_turns(3)

NEW = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)(
    ("PyCapsule_New", ctypes.pythonapi)
)
DELETER = ctypes.CFUNCTYPE(None, ctypes.c_void_p)


class Exporter:
    """An array of an unknown framework that supports only DLPack."""

    def __init__(self, array: np.ndarray[Any, Any], versioned: bool = True) -> None:
        self.array = array
        self.versioned = versioned

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.array.__dlpack_device__()

    def __dlpack__(self, **keywords: Any) -> Any:
        assert "stream" not in keywords, "a CPU has none"
        if not self.versioned and "max_version" in keywords:
            raise TypeError("__dlpack__() got an unexpected keyword argument 'max_version'")
        return self.array.__dlpack__(**keywords)


class Producer:
    """A framework that makes capsules by hand, counts calls of its deleter and records requests."""

    def __init__(
        self,
        shape: tuple[int, ...] = (2, 3),
        strides: tuple[int, ...] | None = None,
        device: tuple[int, int] = (1, 0),
        element: tuple[int, int, int] = (2, 32, 1),
        version: tuple[int, int] | None = (1, 0),
        flags: int = 0,
        offset: int = 0,
    ) -> None:
        self.memory = (ctypes.c_float * 64)()
        self.address = ctypes.addressof(self.memory)
        self.device = device
        self.version = version
        self.deleted = 0
        self.asked: list[dict[str, Any]] = []
        self.managed: Any = dlpack._Managed() if version is None else dlpack._Versioned()
        if version is not None:
            self.managed.major, self.managed.minor = version
            self.managed.flags = flags
        tensor = self.managed.tensor
        tensor.data, tensor.byte_offset = self.address, offset
        tensor.device_type, tensor.device_id = device
        tensor.code, tensor.bits, tensor.lanes = element
        tensor.ndim = len(shape)
        self.arrays = [(ctypes.c_int64 * len(numbers))(*numbers) for numbers in (shape, strides or ())]
        tensor.shape = ctypes.cast(self.arrays[0], ctypes.POINTER(ctypes.c_int64))
        if strides is not None:
            tensor.strides = ctypes.cast(self.arrays[1], ctypes.POINTER(ctypes.c_int64))
        self.callback = DELETER(self.delete)
        self.managed.deleter = ctypes.cast(self.callback, ctypes.c_void_p).value

    def delete(self, address: int) -> None:
        assert address == ctypes.addressof(self.managed)
        self.deleted += 1

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.device

    def __dlpack__(self, **keywords: Any) -> Any:
        self.asked.append(keywords)
        name = b"dltensor" if self.version is None else b"dltensor_versioned"
        return NEW(ctypes.addressof(self.managed), NAMES[name], None)


NAMES = {name: ctypes.c_char_p(name) for name in (b"dltensor", b"dltensor_versioned", b"another")}

ALL_OF_BYTES = [t for t in dtypes.ALL.values() if not t.is_packed]
EXPORTED = sorted((t for t in ALL_OF_BYTES if t.numpy.isbuiltin == 1 and t.numpy.kind in "fiubc"), key=str)


@given(
    st.sampled_from(EXPORTED),
    st.lists(st.integers(0, 5), max_size=3),
    st.lists(st.integers(1, 3), min_size=3, max_size=3),
    st.booleans(),
    st.booleans(),
)
def test_numpy_through_dlpack_says_what_numpy_says(
    element: dtypes.DType, shape: list[int], steps: list[int], transposed: bool, versioned: bool
) -> None:
    view = np.zeros(shape, element.numpy)[(*(slice(None, None, n) for n in steps[: len(shape)]), ...)]
    view = view.T if transposed else view
    through, direct = describe(Exporter(view, versioned)), describe(view)
    assert through.pointer == view.__array_interface__["data"][0]
    assert (through.shape, through.dtype, through.device) == (direct.shape, element, "cpu")
    for extent, a, b in zip(direct.shape, through.strides, direct.strides, strict=True):
        assert a == b or extent <= 1 or view.size == 0


def test_read_only_arrays() -> None:
    array = np.zeros(3)
    assert not describe(Exporter(array)).readonly
    array.flags.writeable = False
    assert describe(Exporter(array)).readonly
    with pytest.raises(LaunchError, match=r"Exporter does not share its memory through DLPack: .*readonly"):
        describe(Exporter(array, versioned=False))


@pytest.mark.parametrize("versioned", [False, True])
def test_numpy_hears_when_we_let_go(versioned: bool) -> None:
    array = np.arange(6.0)
    before = sys.getrefcount(array)
    found = dlpack.export(Exporter(array, versioned), 0)
    assert sys.getrefcount(array) > before
    del found
    gc.collect()
    assert sys.getrefcount(array) == before


@pytest.mark.parametrize("version", [None, (1, 0), (1, 7)])
def test_the_deleter_is_called_once(version: tuple[int, int] | None) -> None:
    producer = Producer(version=version)
    info = describe(producer)
    assert (info.pointer, info.shape, info.strides) == (producer.address, (2, 3), (3, 1))
    assert producer.deleted == 0
    del info
    assert producer.deleted == 1


def test_a_version_from_the_future_is_deleted_unread() -> None:
    producer = Producer(version=(2, 1))
    with pytest.raises(LaunchError, match=r"^DLPack 2\.1 is not known; 1\.x is$"):
        describe(producer)
    gc.collect()
    assert producer.deleted == 1


def test_a_refused_tensor_is_deleted() -> None:
    producer = Producer(element=(2, 32, 4))
    with pytest.raises(LaunchError, match=r"type \(code 2, 32 bits, 4 lanes\) are not supported"):
        describe(producer)
    gc.collect()
    assert producer.deleted == 1


def test_a_producer_without_a_deleter() -> None:
    producer = Producer()
    producer.managed.deleter = None
    assert describe(producer).shape == (2, 3)


def test_strides_and_offset() -> None:
    producer = Producer(shape=(4, 2, 1), strides=(1, 8, -5), offset=12)
    info = describe(producer)
    assert (info.pointer, info.strides) == (producer.address + 12, (1, 8, 0))
    assert describe(Producer(shape=(4,), strides=(-1,))).strides == (-1,)


def test_scalars() -> None:
    info = describe(Producer(shape=()))
    assert (info.shape, info.strides) == ((), ())


@pytest.mark.parametrize(("flags", "readonly"), [(0, False), (1, True), (2, True), (4, False)])
def test_flags(flags: int, readonly: bool) -> None:
    assert describe(Producer(flags=flags)).readonly == readonly


@pytest.mark.parametrize(
    ("device", "expected", "asked"),
    [
        ((1, 0), "cpu", {}),
        ((3, 0), "cpu", {}),
        ((2, 1), ("cuda", 1), {"stream": 1}),
        ((13, 0), ("cuda", 0), {"stream": 1}),
    ],
)
def test_devices(device: tuple[int, int], expected: object, asked: dict[str, int]) -> None:
    producer = Producer(device=device)
    assert describe(producer).device == expected
    assert producer.asked == [{"max_version": (1, 0), **asked}]


def test_the_producer_is_told_the_stream() -> None:
    producer = Producer(device=(2, 0))
    describe(producer, stream=0x7F00)
    locate(producer, 0x7F08)
    assert [asked["stream"] for asked in producer.asked] == [0x7F00, 0x7F08]


def test_other_devices_are_refused() -> None:
    with pytest.raises(
        LaunchError, match=r"^A: the array lies on a device of DLPack type 8; nearest: a copy"
    ):
        describe(Producer(device=(8, 0)), "A")


@pytest.mark.parametrize(
    ("code", "bits", "name"),
    [
        (4, 16, "bf16"),
        (10, 8, "f8e4m3"),
        (11, 8, "f8e4m3fnuz"),
        (12, 8, "f8e5m2"),
        (13, 8, "f8e5m2fnuz"),
        (5, 32, "c32"),
        (5, 128, "c128"),
        (6, 8, "boolean"),
    ],
)
def test_element_types(code: int, bits: int, name: str) -> None:
    assert describe(Producer(element=(code, bits, 1))).dtype is dtypes.ALL[name]


@pytest.mark.parametrize(("code", "bits"), [(3, 64), (1, 128), (15, 6), (17, 4), (0, 4)])
def test_unknown_element_types(code: int, bits: int) -> None:
    with pytest.raises(
        LaunchError, match=rf"\(code {code}, {bits} bits, 1 lanes\) are not supported; known: f64"
    ):
        describe(Producer(element=(code, bits, 1)))


def test_jax_arrays_never_change() -> None:
    array_type = type("ArrayImpl", (Producer,), {"__module__": "jaxlib._jax"})
    assert describe(array_type()).readonly


def test_keys() -> None:
    producer, other = Producer(), Producer(version=None)
    assert exact_key(producer) == exact_key(other)
    assert exact_key(producer) != exact_key(Producer(flags=1))
    assert exact_key(producer) != exact_key(Producer(strides=(1, 2)))
    assert locate(producer) == (exact_key(producer), producer.address)


def test_what_is_no_capsule() -> None:
    for wrong in (None, 5, NEW(8, NAMES[b"another"], None)):
        array = type("Array", (Producer,), {"__dlpack__": lambda self, _wrong=wrong, **_: _wrong})()
        with pytest.raises(LaunchError, match="no fresh DLPack capsule"):
            describe(array)


def test_a_capsule_is_used_once() -> None:
    capsule = np.zeros(3).__dlpack__()
    kept = dlpack.Imported(capsule)
    with pytest.raises(LaunchError, match="no fresh DLPack capsule"):
        dlpack.Imported(capsule)
    assert kept.shape == (3,)
