"""PyTorch, CuPy and the CUDA array interface, by classes with their protocols.

The tests do not use the real frameworks.  The classes have the attributes, types and refusals of PyTorch
2.13, CuPy 13 and Numba 0.60 that the library reads.
"""

from __future__ import annotations

import sys
from contextlib import nullcontext
from types import ModuleType, SimpleNamespace
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from tilewright import dtypes
from tilewright.errors import LaunchError
from tilewright.runtime import arrays, cuda
from tilewright.runtime.arrays import current_stream, describe, exact_key, locate, watch
from tilewright.runtime.cuda import CUDA_DRIVER


class TorchDType:
    def __init__(self, name: str) -> None:
        self.name = name
        self.is_complex = name.startswith("complex")

    def __repr__(self) -> str:
        return f"torch.{self.name}"


class TorchDevice:
    def __init__(self, kind: str, index: int | None) -> None:
        self.type = kind
        self.index = index

    def __repr__(self) -> str:
        return self.type if self.index is None else f"{self.type}:{self.index}"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, TorchDevice) and repr(self) == repr(other)

    def __hash__(self) -> int:
        return hash(repr(self))


class Size(tuple[int, ...]):
    __slots__ = ()


F16, C64 = TorchDType("float16"), TorchDType("complex64")


def seen(array: Any) -> list[object]:
    return [look() for look in watch(array)]


class Torch(ModuleType):
    """A fake module with the functions that the library calls: gradients, and overrides of tensor methods."""

    recording = True

    class _C:
        DisableTorchFunctionSubclass = nullcontext

    def is_grad_enabled(self) -> bool:
        return self.recording


@pytest.fixture(autouse=True)
def torch(monkeypatch: pytest.MonkeyPatch) -> Torch:
    made = Torch("torch")
    monkeypatch.setitem(sys.modules, "torch", made)
    return made


class Tensor:
    """The attributes belong to the class, as in PyTorch, so a subclass may override them."""

    __module__ = "torch"

    dtype = property(lambda self: self._dtype)
    shape = property(lambda self: self._shape)
    device = property(lambda self: self._device)
    is_cuda = property(lambda self: self._device.type == "cuda")
    layout = property(lambda self: self._layout)
    requires_grad = property(lambda self: self._requires_grad)

    def __init__(
        self,
        dtype: TorchDType = F16,
        shape: tuple[int, ...] = (4, 6),
        stride: tuple[int, ...] = (6, 1),
        pointer: int = 4096,
        device: tuple[str, int | None] = ("cpu", None),
        layout: str = "torch.strided",
        conj: bool = False,
        neg: bool = False,
        requires_grad: bool = False,
    ) -> None:
        self._dtype = dtype
        self._shape = Size(shape)
        self._device = TorchDevice(*device)
        self._layout = layout
        self._requires_grad = requires_grad
        self._stride = stride
        self._pointer = pointer
        self._bits = (conj, neg)

    def __dlpack__(self, **_: Any) -> Any:
        raise AssertionError("attributes are faster")

    @property
    def __cuda_array_interface__(self) -> Any:
        raise AssertionError("attributes are faster")

    def stride(self) -> tuple[int, ...]:
        return self._stride

    def size(self) -> Size:
        return self.shape

    def data_ptr(self) -> int:
        if self.layout != "torch.strided":
            raise RuntimeError("Cannot access data pointer of Tensor that doesn't have storage")
        return self._pointer

    def is_conj(self) -> bool:
        return self._bits[0]

    def is_neg(self) -> bool:
        return self._bits[1]


class Parameter(Tensor):
    __module__ = "torch.nn.parameter"


class FakeTensor(Tensor):
    __module__ = "torch._subclasses.fake_tensor"


@pytest.mark.parametrize("cls", [Tensor, Parameter, FakeTensor, type("Mine", (Tensor,), {})])
def test_torch_on_the_cpu(cls: type[Tensor]) -> None:
    tensor = cls()
    info = describe(tensor)
    assert (info.pointer, info.shape, info.strides) == (4096, (4, 6), (6, 1))
    assert type(info.shape) is tuple
    assert (info.dtype, info.device, info.readonly) == (dtypes.f16, "cpu", False)
    assert info.owner is tensor
    assert locate(tensor) == (exact_key(tensor), 4096)


def test_torch_on_a_gpu() -> None:
    assert describe(Tensor(device=("cuda", 3))).device == ("cuda", 3)


@pytest.mark.parametrize(
    ("torch_name", "name"),
    [
        *(("float64", "f64"), ("float32", "f32"), ("float16", "f16"), ("bfloat16", "bf16")),
        *(("float8_e4m3fn", "f8e4m3"), ("float8_e5m2", "f8e5m2"), ("bool", "boolean")),
        *(("float8_e4m3fnuz", "f8e4m3fnuz"), ("float8_e5m2fnuz", "f8e5m2fnuz"), ("float8_e8m0fnu", "f8e8m0")),
        *(("int64", "i64"), ("int32", "i32"), ("int16", "i16"), ("int8", "i8")),
        *(("uint64", "u64"), ("uint32", "u32"), ("uint16", "u16"), ("uint8", "u8")),
        *(("complex128", "c128"), ("complex64", "c64"), ("complex32", "c32")),
    ],
)
def test_torch_element_types(torch_name: str, name: str) -> None:
    assert describe(Tensor(TorchDType(torch_name))).dtype is dtypes.ALL[name]


@pytest.mark.parametrize("name", ["float6_e2m3fn", "quint8", "bits16"])
def test_torch_element_types_without_a_kernel(name: str) -> None:
    with pytest.raises(
        LaunchError, match=f"^A: elements of type torch.{name} are not supported; known: f64, "
    ):
        describe(Tensor(TorchDType(name)), "A")


@pytest.mark.parametrize(
    ("tensor", "message"),
    [
        (Tensor(C64, conj=True), r"the tensor is a lazy conjugate; nearest: tensor.resolve_conj\(\)"),
        (Tensor(C64, neg=True), r"the tensor is a lazy negation; nearest: tensor.resolve_neg\(\)"),
        (Tensor(neg=True), r"the tensor is a lazy negation; nearest: tensor.resolve_neg\(\)"),
        (Tensor(layout="torch.sparse_coo"), r"a tensor of layout torch.sparse_coo .*; .*to_dense\(\)"),
        (Tensor(pointer=0), r"an array of shape \(4, 6\) has no memory: its address is 0"),
        (FakeTensor(pointer=0), r"an array of shape \(4, 6\) has no memory: its address is 0"),
    ],
)
def test_torch_tensors_that_a_key_must_refuse(tensor: Tensor, message: str) -> None:
    for read in (describe, exact_key, locate):
        with pytest.raises(LaunchError, match=f"^{message}$"):
            read(tensor)


def test_torch_elsewhere() -> None:
    with pytest.raises(LaunchError, match=r"^the tensor lies on mps:0; nearest: tensor.cpu\(\)"):
        describe(Tensor(device=("mps", 0)))


def test_torch_under_a_transformation() -> None:
    class Wrapped(Tensor):
        def data_ptr(self) -> int:
            raise RuntimeError("Cannot access data pointer of Tensor that doesn't have storage")

    Wrapped.__name__, Wrapped.__module__ = "Tensor", "torch"
    for read in (describe, exact_key):
        with pytest.raises(LaunchError, match=r"^the tensor has no memory: Cannot access data pointer"):
            read(Wrapped())


def test_an_empty_torch_tensor_has_no_address() -> None:
    empty = Tensor(shape=(0, 6), pointer=0)
    assert describe(empty).pointer == 0
    assert locate(empty) == (exact_key(empty), 0)


def test_torch_keys_differ_in_every_part() -> None:
    tensors = [
        *(Tensor(), Tensor(C64), Tensor(shape=(6, 4)), Tensor(stride=(1, 4)), Tensor(pointer=4098)),
        *(Tensor(device=("cuda", 0)), Tensor(device=("cuda", 1)), Tensor(device=("meta", None))),
    ]
    assert len({exact_key(tensor) for tensor in tensors}) == len(tensors)
    assert exact_key(Tensor(pointer=4096)) == exact_key(Tensor(pointer=8192))


def test_the_current_stream_of_torch(monkeypatch: pytest.MonkeyPatch, torch: Torch) -> None:
    torch._C = SimpleNamespace(_cuda_getCurrentRawStream=lambda index: 0x7F00 + index)
    on_gpu = Tensor(device=("cuda", 2))
    assert current_stream(("cuda", 2), [on_gpu]) == 0x7F02
    assert current_stream(("cuda", 2), [np.zeros(3), on_gpu]) == 0x7F02
    assert current_stream("cpu", [Tensor()]) == 0
    # A build without CUDA has no such call, and its tensors need none.
    del torch._C._cuda_getCurrentRawStream
    assert current_stream(("cuda", 2), [Tensor()]) == 0


def test_a_torch_tensor_that_is_moved_or_resized_in_place() -> None:
    for change in ({"_pointer": 8192}, {"_shape": Size((2, 6))}):
        tensor = Tensor()
        before = seen(tensor)
        assert seen(tensor) == before
        vars(tensor).update(change)
        assert seen(tensor) != before


# CuPy.


class CupyArray:
    """A fake `cupy.ndarray` with the attributes of a NumPy array."""

    def __init__(self, array: np.ndarray[Any, Any], device: int = 0) -> None:
        self.array = array
        self.shape, self.strides, self.dtype = array.shape, array.strides, array.dtype
        self.data = SimpleNamespace(ptr=array.__array_interface__["data"][0], device_id=device)

    def __dlpack__(self, **_: Any) -> Any:
        raise AssertionError("attributes are faster")

    @property
    def __cuda_array_interface__(self) -> Any:
        raise AssertionError("attributes are faster")


CupyArray.__name__, CupyArray.__module__ = "ndarray", "cupy"


def test_cupy() -> None:
    array = np.zeros((4, 6), ml_dtypes.bfloat16)[:, ::2]
    on_gpu = CupyArray(array, 1)
    info = describe(on_gpu)
    assert (info.pointer, info.shape, info.strides) == (describe(array).pointer, (4, 3), (6, 2))
    assert (info.dtype, info.device, info.readonly) == (dtypes.bf16, ("cuda", 1), False)
    assert locate(on_gpu) == (exact_key(on_gpu), info.pointer)
    assert len({exact_key(a) for a in (array, on_gpu, CupyArray(array, 0), CupyArray(array.T, 1))}) == 4


def test_a_cupy_array_that_is_moved_or_resized() -> None:
    for other in (np.zeros((4, 6)), np.zeros((2, 6))):
        on_gpu = CupyArray(np.zeros((4, 6)), 0)
        before = seen(on_gpu)
        assert seen(on_gpu) == before
        vars(on_gpu).update(vars(CupyArray(other, 0)))
        assert seen(on_gpu) != before


def test_the_current_stream_of_cupy(monkeypatch: pytest.MonkeyPatch) -> None:
    cupy = ModuleType("cupy")
    cupy.cuda = SimpleNamespace(get_current_stream=lambda: SimpleNamespace(ptr=0x6F00))
    monkeypatch.setitem(sys.modules, "cupy", cupy)
    assert current_stream(("cuda", 0), [np.zeros(1), CupyArray(np.zeros(1))]) == 0x6F00


# The CUDA array interface.


class DeviceArray:
    """Numba's device array, or another object with only the interface."""

    def __init__(self, array: np.ndarray[Any, Any], **changes: Any) -> None:
        self.array = array
        face = dict(array.__array_interface__)
        del face["descr"]
        self.__cuda_array_interface__ = {**face, **changes}


@pytest.mark.parametrize("version", [2, 3])
def test_the_cuda_array_interface(version: int) -> None:
    array = np.zeros((4, 6), np.float32)
    for view in (array, array.T, array[:, ::3], array[1:, 2:]):
        given = DeviceArray(view, version=version)
        info, direct = describe(given), describe(view)
        assert (info.pointer, info.shape, info.strides) == (direct.pointer, direct.shape, direct.strides)
        assert (info.dtype, info.device, info.readonly) == (dtypes.f32, ("cuda", 0), False)
        assert info.owner is given
        assert locate(given) == (exact_key(given), info.pointer)
    assert DeviceArray(array).__cuda_array_interface__["strides"] is None


def test_the_interface_without_strides_or_elements() -> None:
    array = np.zeros((3, 4), np.int8)
    face = dict(DeviceArray(array).__cuda_array_interface__)
    del face["strides"]
    bare = type("Bare", (), {"__cuda_array_interface__": face})()
    assert describe(bare).strides == (4, 1)
    empty = DeviceArray(array, shape=(0, 4), data=(0, False))
    assert describe(empty).pointer == 0


def test_the_interface_of_extension_types_hides_the_dtype() -> None:
    array = DeviceArray(np.zeros(3, ml_dtypes.bfloat16))
    assert array.__cuda_array_interface__["typestr"] == "<V2"
    with pytest.raises(LaunchError, match="are not supported"):
        describe(array)
    array.dtype = array.array.dtype
    assert describe(array).dtype is dtypes.bf16


def test_read_only_memory() -> None:
    array = np.zeros(3)
    array.flags.writeable = False
    assert describe(DeviceArray(array)).readonly
    assert exact_key(DeviceArray(array)) != exact_key(DeviceArray(np.zeros(3)))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"typestr": ">f4"}, "the other byte order"),
        ({"typestr": "<M8[s]"}, r"elements of type datetime64\[s\] are not supported"),
        ({"mask": object()}, "the array's mask would be lost"),
        ({"strides": (-18, 4)}, "stride -18 bytes of dimension 0 is no multiple of the 4 bytes"),
        ({"strides": (18, 4)}, "stride 18 bytes of dimension 0 is no multiple of the 4 bytes"),
        ({"data": (4097, False)}, "address 0x1001 is no multiple of the 4 bytes of f32"),
        ({"data": (0, False)}, "its address is 0"),
    ],
)
def test_what_the_interface_may_not_say(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(LaunchError, match=message):
        describe(DeviceArray(np.zeros((4, 4), np.float32), **changes))


def test_an_array_behind_the_interface_that_is_moved_or_resized() -> None:
    changes = ({"data": (8192, False)}, {"shape": (2, 4)}, {"strides": (32, 4)}, {"data": (4096, True)})
    for change in ({}, *changes):
        array = DeviceArray(np.zeros((4, 4), np.float32), data=(4096, False))
        before = seen(array)
        array.__cuda_array_interface__ |= change
        assert (seen(array) == before) == (not change)


def test_the_stream_of_the_interface() -> None:
    array = np.zeros(3)
    assert current_stream(("cuda", 0), [DeviceArray(array, stream=0x5F00)]) == 0x5F00
    assert current_stream(("cuda", 0), [DeviceArray(array, stream=None)]) == 0
    assert current_stream(("cuda", 0), [DeviceArray(array)]) == 0


def test_the_drivers_know_the_device_of_a_pointer(monkeypatch: pytest.MonkeyPatch) -> None:
    owners = {arrays.GPU: {4096: 2}, arrays.AMD_GPU: {12288: 1}}
    monkeypatch.setattr(arrays, "driver_of", lambda memory: SimpleNamespace(device_of=owners[memory].get))
    found = [
        describe(DeviceArray(np.zeros(3), data=(address, False))).device for address in (4096, 8192, 12288)
    ]
    assert found == [(arrays.GPU, 2), (arrays.GPU, 0), (arrays.AMD_GPU, 1)]


class Library:
    """The driver's library, which owns the addresses from 4096 on."""

    def cuPointerGetAttribute(self, made: Any, attribute: int, address: Any) -> int:  # noqa: N802
        made._obj.value = 3 if attribute == 9 else 0
        return 0 if address.value >= 4096 else 1


@pytest.mark.usefixtures("gpu")
def test_the_library_says_which_gpu_owns_an_address(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda, "_libcuda", Library)
    monkeypatch.delattr(CUDA_DRIVER, "device_of")
    assert [CUDA_DRIVER.device_of(address) for address in (4096, 1 << 63, 4095)] == [3, 3, None]

    def missing() -> None:
        raise OSError("no such file")

    monkeypatch.setattr(cuda, "_libcuda", missing)
    assert CUDA_DRIVER.device_of(4096) is None


def test_without_the_driver_there_is_one_device(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cuda.bindings", None)
    assert describe(DeviceArray(np.zeros(3), data=(4096, False))).device == ("cuda", 0)
