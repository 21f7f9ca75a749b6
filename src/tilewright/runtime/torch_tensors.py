"""How PyTorch's tensors are read, without importing it."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Hashable
from dataclasses import replace
from typing import Any

from tilewright.dtypes import DType, dtype
from tilewright.errors import DTypeError, LaunchError
from tilewright.runtime.frameworks import (
    ArrayInfo,
    AsBase,
    Device,
    Family,
    base_of,
    finish,
    located,
    none,
    unsupported,
)
from tilewright.targets.target import AMD_GPU, GPU, HOST

_BY_TORCH: dict[object, DType] = {}


def _element(given: object) -> DType:
    found = _BY_TORCH.get(given)
    if found is None:
        name = str(given).removeprefix("torch.")
        try:
            found = _BY_TORCH[given] = dtype(name)
        except DTypeError:
            raise unsupported(given) from None
    return found


def _records(tensor: Any) -> bool:
    """Whether PyTorch records what is computed from a tensor, for its gradient."""
    return bool(tensor.requires_grad and sys.modules["torch"].is_grad_enabled())


def _refuse_gradient(tensor: Any) -> None:
    if _records(tensor):
        raise LaunchError(
            "the tensor requires a gradient, which the result of a kernel would not have; nearest legal "
            "choice: tensor.detach(), or a call under torch.no_grad()"
        )


def _gpus() -> str:
    """Which vendor's GPUs are meant by the device that PyTorch calls CUDA: it is built for one of them."""
    try:
        return AMD_GPU if sys.modules["torch"].version.hip else GPU
    except AttributeError:
        return GPU


def _describe(tensor: Any, stream: int) -> ArrayInfo:
    if str(tensor.layout) != "torch.strided":
        raise LaunchError(f"a tensor of layout {tensor.layout} has no strides; nearest: tensor.to_dense()")
    if tensor.is_conj():
        raise LaunchError("the tensor is a conjugate not carried out yet; nearest: tensor.resolve_conj()")
    if tensor.is_neg():
        raise LaunchError("the tensor is a negation not carried out yet; nearest: tensor.resolve_neg()")
    _refuse_gradient(tensor)
    where = tensor.device
    if where.type not in (HOST, GPU):
        raise LaunchError(f"the tensor lies on {where}; nearest: tensor.cpu() or tensor.cuda()")
    device: Device = HOST if where.type == HOST else (_gpus(), where.index)
    element = _element(tensor.dtype)
    try:
        pointer = tensor.data_ptr()
    except RuntimeError as problem:  # a tensor that stands for another while it is being transformed
        raise LaunchError(f"the tensor has no memory: {problem}") from problem
    return finish(pointer, tensor.shape, tensor.stride(), element, device, False, tensor)


def _locate(tensor: Any, stream: int) -> tuple[Hashable, int]:
    try:
        pointer, element = tensor.data_ptr(), tensor.dtype
    except RuntimeError:
        return located(_describe(tensor, stream))
    if tensor.requires_grad:
        _refuse_gradient(tensor)
    # Only complex tensors have a conjugate bit.
    if not pointer or tensor.is_neg() or (element.is_complex and tensor.is_conj()):
        _describe(tensor, stream)
    return (tensor.shape, tensor.stride(), element, pointer & 15, tensor.device), pointer


def _watch(tensor: Any) -> tuple[Callable[[], object], ...]:
    # Where no gradient is required, that it is not costs less to ask than whether one is recorded.
    look = functools.partial(_records, tensor) if tensor.requires_grad else None
    return tensor.data_ptr, tensor.size, look or functools.partial(getattr, tensor, "requires_grad")


def _stream(tensor: Any, index: int) -> Callable[[], int | None]:
    if not tensor.is_cuda:
        return none
    return functools.partial(sys.modules["torch"]._C._cuda_getCurrentRawStream, index)


TORCH = Family(_describe, _locate, _watch, _stream)


def _as_base(tensor: Any) -> AsBase:
    base = base_of(type(tensor), "torch", "Tensor")
    assert base is not None
    return AsBase(tensor, base)


def _describe_subclass(tensor: Any, stream: int) -> ArrayInfo:
    # A subclass may also answer in the place of PyTorch's own methods.
    with sys.modules["torch"]._C.DisableTorchFunctionSubclass():
        return replace(_describe(_as_base(tensor), stream), owner=tensor)


def _locate_subclass(tensor: Any, stream: int) -> tuple[Hashable, int]:
    return located(_describe_subclass(tensor, stream))


def _watch_subclass(tensor: Any) -> tuple[Callable[[], object], ...]:
    return (lambda: _locate_subclass(tensor, 0),)


def _stream_subclass(tensor: Any, index: int) -> Callable[[], int | None]:
    with sys.modules["torch"]._C.DisableTorchFunctionSubclass():
        return _stream(_as_base(tensor), index)


TORCH_SUBCLASS = Family(_describe_subclass, _locate_subclass, _watch_subclass, _stream_subclass)
