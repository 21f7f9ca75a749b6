"""The metadata of an array comes from its memory, not from a subclass' attributes; malformed interfaces."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import tilewright as tw
from tilewright.dtypes import ALL
from tilewright.errors import LaunchError
from tilewright.runtime.arrays import current_stream, describe, exact_key, locate, watch

from .test_frameworks import CupyArray, DeviceArray, Size, Tensor, Torch, TorchDevice, seen
from .test_frameworks import torch as torch  # a fixture


class Lying(np.ndarray):
    """An array that claims another size, address and type; NumPy knows the true ones."""

    shape = property(lambda self: (400, 400))
    strides = property(lambda self: (4, 4))
    dtype = property(lambda self: np.dtype(np.float64))
    flags = property(lambda self: SimpleNamespace(writeable=True))
    ctypes = property(lambda self: SimpleNamespace(data=4096))
    size = property(lambda self: 160_000)
    T = property(lambda self: np.full((8, 8), np.nan, np.float32))
    nbytes = property(lambda self: 1_280_000)
    __array_interface__ = property(lambda self: {"data": (4096, False), "shape": (400, 400), "version": 3})
    __array_struct__ = property(lambda self: 1 / 0)

    def __array_finalize__(self, made: Any) -> None:
        pass

    def view(self, *_: Any) -> Any:
        raise AssertionError("may be overridden")

    def __array__(self, *_: Any, **__: Any) -> Any:
        raise AssertionError("may be overridden")


def lying(array: np.ndarray[Any, Any]) -> Any:
    return np.ndarray.view(array, Lying)


def test_numpy_is_described_by_its_memory() -> None:
    true = np.arange(24, dtype=np.float32).reshape(4, 6)[:, ::2]
    false = lying(true)
    assert false.shape == (400, 400)
    info = describe(false)
    assert info == describe(true)
    assert info.owner is false
    assert locate(false) == locate(true)
    assert exact_key(false) == exact_key(true)
    fixed = true.copy()
    fixed.flags.writeable = False
    assert describe(lying(fixed)).readonly


@pytest.mark.parametrize("target", ["reference", "cpu"])
def test_nothing_is_read_or_written_out_of_bounds(target: str) -> None:
    """An array claims the shape (400, 400), and its memory has 64 elements."""
    memory = np.full((3, 32, 32), 7, np.float32)
    a, b, out = memory[1, :8, :8], np.eye(8, dtype=np.float32), np.zeros((8, 8), np.float32)
    assert tw.matmul(lying(a), lying(b), out=out, target=target) is out
    assert (out == 7).all()
    made = lying(memory[1, 8:16, 8:16])
    tw.matmul(b, b, out=made, target=target)
    assert (np.asarray(memory[1, 8:16, 8:16]) == np.eye(8)).all()
    memory[1, 8:16, 8:16] = 7
    assert (memory == 7).all()


def test_a_lying_array_that_is_resized_is_noticed() -> None:
    false = lying(np.zeros((4, 6), np.float32))
    before = [look() for look in watch(false)]
    np.ndarray.shape.__set__(false, (6, 4))  # type: ignore[attr-defined]
    assert [look() for look in watch(false)] != before


def test_what_only_looks_like_an_array_is_none() -> None:
    pretender = type("Pretender", (), {"__class__": np.ndarray, "shape": (4,), "__array_struct__": 5})()
    assert isinstance(pretender, np.ndarray)
    with pytest.raises(LaunchError, match="is not an array"):
        describe(pretender)


class LyingTensor(Tensor):
    shape = property(lambda self: Size((400, 400)))
    dtype = property(lambda self: "torch.float64")
    device = property(lambda self: TorchDevice("cpu", None))
    requires_grad = property(lambda self: False)

    def stride(self) -> tuple[int, ...]:
        return (1, 1)

    def data_ptr(self) -> int:
        return 1 << 20

    def size(self) -> Size:
        return Size((400, 400))


def test_tensors_are_described_by_their_memory() -> None:
    for device in (("cpu", None), ("cuda", 1)):
        false, true = LyingTensor(device=device), Tensor(device=device)
        assert describe(false) == describe(true)
        assert describe(false).owner is false
        before = seen(false)
        false._pointer = 8192
        assert seen(false) != before
    with pytest.raises(LaunchError, match="requires a gradient"):
        describe(LyingTensor(requires_grad=True))


def test_who_answers_for_a_subclass_is_not_asked(torch: Torch) -> None:
    """PyTorch would call a subclass's `__torch_function__` instead of its own methods."""
    entered = []

    class Disabled:
        def __enter__(self) -> None:
            entered.append(True)

        def __exit__(self, *_: object) -> None:
            entered.pop()

    class Watched(Tensor):
        _pointer = property(lambda self: 4096 if entered else 1 / 0, lambda self, value: None)

    torch._C = SimpleNamespace(DisableTorchFunctionSubclass=Disabled)
    assert describe(Watched()).pointer == 4096
    assert locate(Watched())[1] == 4096
    assert seen(Watched())


class CupyBase(CupyArray):
    """CuPy's class, with attributes of the class."""

    shape = property(lambda self: self.true.shape)
    strides = property(lambda self: self.true.strides)
    dtype = property(lambda self: self.true.dtype)
    data = property(lambda self: SimpleNamespace(ptr=self.true.ctypes.data, device_id=1))

    def __init__(self, array: np.ndarray[Any, Any]) -> None:
        self.true = array


CupyBase.__name__, CupyBase.__module__ = "ndarray", "cupy"


class LyingCupy(CupyBase):
    shape = property(lambda self: (400, 400))
    data = property(lambda self: SimpleNamespace(ptr=4096, device_id=0))


def test_cupy_is_described_by_its_memory() -> None:
    array = np.zeros((4, 6), np.float32)
    false = LyingCupy(array)
    info, true = describe(false), describe(array)
    assert (info.pointer, info.shape, info.strides) == (true.pointer, true.shape, true.strides)
    assert info.device == ("cuda", 1)
    assert info.owner is false
    assert locate(false) == locate(CupyBase(array))
    before = seen(false)
    false.true = np.zeros((4, 6), np.float32)
    assert seen(false) != before


def test_a_dtype_beside_the_interface_counts_only_where_the_interface_has_no_name_for_it() -> None:
    array = DeviceArray(np.zeros((4, 4), np.float32))
    array.dtype = np.dtype(np.float64)
    assert describe(array).dtype is tw.f32
    raw = DeviceArray(np.zeros((4, 4), np.float32), typestr="<V2")
    raw.dtype = np.dtype(np.float32)
    with pytest.raises(LaunchError, match=r"'typestr'.* is '<V2'; it must be a type of 4 bytes"):
        describe(raw)


@pytest.mark.parametrize("element", [t for t in ALL.values() if not t.is_packed], ids=str)
def test_every_element_type_by_the_interface(element: tw.DType) -> None:
    array = DeviceArray(np.zeros((4, 4), element.numpy))
    array.dtype = element.numpy
    array.__cuda_array_interface__["typestr"] = (
        element.numpy.str
    )  # of f8e5m2 '<f1', which NumPy does not read
    assert describe(array).dtype is element


FACES: list[tuple[Callable[[dict[str, Any]], object], str]] = [
    (lambda face: face.pop("shape"), r"\['shape'\] is None; it must be a tuple of integers"),
    (lambda face: face.update(shape=4), r"\['shape'\] is 4; it must be a tuple of integers"),
    (lambda face: face.update(shape=(4.0, 4)), r"\['shape'\] is \(4.0, 4\)"),
    (lambda face: face.update(shape="44"), r"\['shape'\] is '44'"),
    (lambda face: face.update(shape=(-4, 4)), r"shape \(-4, 4\) has a negative extent"),
    (lambda face: face.update(strides=(16,)), r"\['strides'\] is \(16,\); it must be one for each of the 2"),
    (lambda face: face.update(strides=16), r"\['strides'\] is 16; it must be a tuple of integers"),
    (lambda face: face.update(strides=(16, None)), r"\['strides'\] is \(16, None\)"),
    (lambda face: face.pop("typestr"), r"\['typestr'\] is None; it must be a type as NumPy writes it"),
    (lambda face: face.update(typestr="float99"), r"\['typestr'\] is 'float99'"),
    (lambda face: face.update(typestr=7), r"\['typestr'\] is 7"),
    (lambda face: face.pop("data"), r"\['data'\] is None; it must be an address"),
    (lambda face: face.update(data=4096), r"\['data'\] is 4096"),
    (lambda face: face.update(data=("x", False)), r"\['data'\] is \('x', False\)"),
    (lambda face: face.update(data=(-4096, False)), r"\['data'\] is \(-4096, False\)"),
    (lambda face: face.update(data=(2**64, False)), r"\['data'\] is \(18446744073709551616, False\)"),
    (lambda face: face.update(data=(4096, False, 0)), r"\['data'\] is \(4096, False, 0\)"),
]


@pytest.mark.parametrize(
    ("spoil", "message"), FACES, ids=lambda value: value if isinstance(value, str) else ""
)
def test_a_malformed_interface_is_refused_by_its_field(
    spoil: Callable[[dict[str, Any]], object], message: str
) -> None:
    array = DeviceArray(np.zeros((4, 4), np.float32))
    spoil(array.__cuda_array_interface__)
    for read in (describe, exact_key, locate):
        with pytest.raises(LaunchError, match=message):
            read(array)
    with pytest.raises(LaunchError, match=message):
        tw.matmul(array, array, target="cuda")


@pytest.mark.parametrize("face", [None, 5, "abc", (1, 2)])
def test_an_interface_that_is_no_dictionary(face: object) -> None:
    bare = type("Bare", (), {"__cuda_array_interface__": face})()
    with pytest.raises(LaunchError, match="and must be a dictionary"):
        describe(bare)


def test_a_stream_that_is_none() -> None:
    with pytest.raises(LaunchError, match=r"\['stream'\] is 'x'; it must be the handle of a stream, or None"):
        current_stream(("cuda", 0), [DeviceArray(np.zeros(3), stream="x")])


class Tracer:
    """`jax.core.Tracer`, a placeholder for an array in a function that JAX transforms."""

    __module__ = "jax._src.core"

    def __dlpack__(self, **_: Any) -> Any:
        raise AssertionError("there is no memory")


def test_a_jax_tracer_is_refused() -> None:
    traced = type("JVPTracer", (Tracer,), {"__module__": "jax._src.interpreters.ad"})()
    with pytest.raises(LaunchError, match=r"a JAX tracer has no memory: .* outside of jax.jit"):
        describe(traced)
    assert "jax" not in sys.modules
