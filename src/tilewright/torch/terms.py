"""Shared by products for PyTorch: terms after a product, shapes and dtypes of results, quantised weights."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import torch
from torch.compiler import is_compiling

from tilewright.dtypes import DType
from tilewright.dtypes import dtype as dtype_named
from tilewright.errors import LaunchError
from tilewright.ops.problem import result_shape
from tilewright.ops.products import BLOCK
from tilewright.ops.results import result_dtype, whole_product
from tilewright.ops.scales import scaled_dtype
from tilewright.ops.wanted import Wanted, check_words
from tilewright.packing import NF4, unpack
from tilewright.targets.target import HOST
from tilewright.torch.registry import dtype_of, torch_dtype

aten = torch.ops.aten
gelu = torch.nn.functional.gelu

ACTIVATIONS = {
    "relu": torch.relu,
    "gelu": gelu,
    "gelu_tanh": lambda x: gelu(x, approximate="tanh"),
    "silu": torch.nn.functional.silu,
    "sigmoid": torch.sigmoid,
    "tanh": torch.tanh,
}
"""Activations that PyTorch computes after a product, if a gradient needs the product's sums."""

FROM_RESULT = {
    "relu": lambda dy, y: aten.threshold_backward(dy, y, 0),
    "sigmoid": aten.sigmoid_backward,
    "tanh": aten.tanh_backward,
}
"""The gradient before an activation, from the gradient after it and the activation's result."""

FROM_SUMS: dict[str, Callable[..., Any]] = {
    "relu": lambda dy, x: aten.threshold_backward(dy, x, 0),
    "gelu": aten.gelu_backward,
    "gelu_tanh": partial(aten.gelu_backward, approximate="tanh"),
    "silu": lambda dy, x: dy * SLOPES["silu"](x) if torch.is_grad_enabled() else aten.silu_backward(dy, x),
    "sigmoid": lambda dy, x: aten.sigmoid_backward(dy, torch.sigmoid(x)),
    "tanh": lambda dy, x: aten.tanh_backward(dy, torch.tanh(x)),
}
"""The gradient before an activation, from the gradient after it and the activation's argument."""

SLOPES: dict[str, Callable[[Any], Any]] = {
    "relu": lambda x: (x > 0).to(x.dtype),
    "gelu": lambda x: aten.gelu_backward(torch.ones_like(x), x),
    "gelu_tanh": lambda x: aten.gelu_backward(torch.ones_like(x), x, approximate="tanh"),
    "silu": lambda x: torch.sigmoid(x) * (1 + x * (1 - torch.sigmoid(x))),
    "sigmoid": lambda x: torch.sigmoid(x) * (1 - torch.sigmoid(x)),
    "tanh": lambda x: 1 - torch.tanh(x) ** 2,
}
"""The derivatives of activations, which PyTorch can differentiate again."""


def activated(name: str | None, x: torch.Tensor) -> torch.Tensor:
    """Return an activation of a tensor, by PyTorch; the tensor itself if the name is None.

    Raises:
        LaunchError: the library has no activation of that name.

    Example:
        >>> activated("relu", torch.tensor([-1.0, 2.0])).tolist()
        [0.0, 2.0]
    """
    if name is None:
        return x
    if name not in ACTIVATIONS:
        check_words(Wanted(activation=name))
    return ACTIVATIONS[name](x)


ACTIVATION_MODULES: dict[type, Callable[[Any], str | None]] = {
    torch.nn.ReLU: lambda layer: "relu",
    torch.nn.GELU: lambda layer: {"none": "gelu", "tanh": "gelu_tanh"}.get(layer.approximate),
    torch.nn.SiLU: lambda layer: "silu",
    torch.nn.Sigmoid: lambda layer: "sigmoid",
    torch.nn.Tanh: lambda layer: "tanh",
}
"""The name of the activation that a module of PyTorch computes."""


def activation_of(layer: torch.nn.Module) -> str | None:
    """Return the name of the activation that a module computes; None: it is unknown.

    Modules of `transformers` are recognised by their values at 1001 points, because each is a function of one
    element.

    Args:
        layer: the module.

    Example:
        >>> activation_of(torch.nn.GELU(approximate="tanh")), activation_of(torch.nn.ELU())
        ('gelu_tanh', None)
    """
    if type(layer) in ACTIVATION_MODULES:
        return ACTIVATION_MODULES[type(layer)](layer)
    if type(layer).__module__ != "transformers.activations" or layer._parameters:
        return None
    x = torch.linspace(-8, 8, 1001, dtype=torch.float64, device=HOST)
    with torch.no_grad():
        y = layer(x)
    near = (name for name, one in ACTIVATIONS.items() if bool(((y - one(x)).abs() <= 1e-12).all()))
    return next(near, None)


def finished(
    y: torch.Tensor, activation: str | None, multiply: Any, derivative: str | None, residual: Any
) -> torch.Tensor:
    """Return ``activation(y) * multiply + residual`` by operations of PyTorch, in the dtype of ``y``.

    Args:
        y: the sums.
        activation: as in `matmul`.
        multiply: as in `matmul`.
        derivative: as in `matmul`.
        residual: as in `matmul`.

    Example:
        >>> finished(torch.tensor([-1.0, 2.0]), "relu", torch.tensor(3.0), None, torch.tensor(1.0)).tolist()
        [1.0, 7.0]
    """
    made = y if activation is None else activated(activation, y)
    if multiply is not None:
        made = made * (multiply if derivative is None else SLOPES[derivative](multiply))
    if residual is not None:
        made = made + residual
    return made.to(y.dtype)


def is_last(activation: str | None, multiply: Any, residual: Any) -> bool:
    """Return whether training needs only the kernel's result, from which the activation's slope follows.

    Args:
        activation: as in `matmul`.
        multiply: as in `matmul`.
        residual: as in `matmul`.

    Example:
        >>> is_last("relu", None, None), is_last("silu", None, None)
        (True, False)
    """
    return multiply is None and (activation is None or (activation in FROM_RESULT and residual is None))


def own_dtype(dtype: torch.dtype | None) -> DType | None:
    """Return the library's record of a dtype, or None for None.

    Example:
        >>> own_dtype(torch.float16), own_dtype(None)
        (f16, None)
    """
    return None if dtype is None else dtype_of(dtype)


def result_like(op: str, out_dtype: torch.dtype | None, **arrays: torch.Tensor | None) -> torch.dtype:
    """Return the dtype of a product's result.

    Args:
        op: the operation's name in messages.
        out_dtype: the dtype that the caller wants, or None.
        arrays: the arrays ``a``, ``b`` and others.

    Raises:
        DTypeError: an unsupported dtype or mixture.

    Example:
        >>> half = torch.ones(1, dtype=torch.float16)
        >>> result_like("matmul", None, a=half, b=half)
        torch.float16
    """
    kinds = {name: dtype_of(one.dtype) for name, one in arrays.items() if one is not None}
    wanted = Wanted(out_dtype=own_dtype(out_dtype))
    whole = whole_product(kinds, wanted) if op == "matmul" else None  # integers other than i8
    return torch_dtype(result_dtype(kinds, wanted, op) if whole is None else whole.result)


def scaled_like(
    op: str, out_dtype: torch.dtype | None, a: torch.Tensor, b: torch.Tensor, packed: str | None = None
) -> torch.dtype:
    """Return the dtype of the result of a product that takes fp8 and i8, as `scaled_mm` does.

    Args:
        op: the operation's name in messages.
        out_dtype: the dtype that the caller wants, or None.
        a: the first operand.
        b: the second operand.
        packed: dtype of the numbers if each byte of ``b`` holds two; otherwise None.

    Raises:
        DTypeError: an unsupported dtype or mixture.

    Example:
        >>> codes = torch.ones(1, dtype=torch.int8)
        >>> scaled_like("scaled_mm", None, codes, codes)
        torch.float32
    """
    kinds = {"a": dtype_of(a.dtype), "b": dtype_of(b.dtype) if packed is None else dtype_named(packed)}
    return torch_dtype(scaled_dtype(kinds, Wanted(out_dtype=own_dtype(out_dtype)), op))


def present(**arrays: Any) -> dict[str, Any]:
    """Return the arrays that are not None, by name.

    Example:
        >>> present(bias=None, residual=1)
        {'residual': 1}
    """
    return {name: one for name, one in arrays.items() if one is not None}


def product_shape(a: torch.Tensor, b: torch.Tensor) -> tuple[Any, ...]:
    """Return the shape of ``a @ b`` by NumPy's rules.

    Raises:
        LaunchError: a scalar, or shapes that do not fit.

    Example:
        >>> product_shape(torch.ones(5, 1, 2, 3), torch.ones(4, 3, 6))
        (5, 4, 2, 6)
    """
    if all(isinstance(extent, int) for one in (a, b) for extent in one.shape):
        return result_shape(a.shape, b.shape)
    if not a.dim() or not b.dim():
        raise LaunchError("matmul of a scalar", "an array of one dimension or more")
    rows = a.shape[-2:-1] if a.dim() > 1 else ()
    columns = b.shape[-1:] if b.dim() > 1 else ()
    torch._check(a.shape[-1] == b.shape[-2 if b.dim() > 1 else 0], lambda: "matmul: K of a and b differ")
    return *torch.broadcast_shapes(a.shape[:-2], b.shape[:-2]), *rows, *columns


def reduced_to(gradient: torch.Tensor, one: torch.Tensor) -> torch.Tensor:
    """Return the gradient of an array that was broadcast: sums over the repeated dimensions.

    Args:
        gradient: the gradient of the broadcast array.
        one: the array.

    Example:
        >>> reduced_to(torch.ones(3, 4), torch.zeros(4)).tolist()
        [3.0, 3.0, 3.0, 3.0]
    """
    return gradient.sum_to_size(one.shape).to(one.dtype)


def drawn_seed(name: str, largest: int) -> int:
    """Draw a seed of dropout by PyTorch's generator of the CPU.

    Args:
        name: the operation.
        largest: a number; the seed is less.

    Raises:
        LaunchError: `torch.func.vmap` with ``randomness="different"``, which draws a seed for each call.
    """
    drawn = torch.randint(largest, (), device=HOST)
    if not is_compiling() and torch._C._functorch.is_batchedtensor(drawn):
        raise LaunchError(
            f"tilewright.torch.{name}: torch.func.vmap draws a seed of dropout for each call, and a kernel "
            "takes one seed",
            "randomness='same', or seed= with a call for each seed",
        )
    return int(drawn)


def batch_first(one: torch.Tensor, dim: int | None, rank: int) -> torch.Tensor:
    """Return a batched argument with its batch first, then dimensions of extent 1 up to a rank.

    Args:
        one: the argument.
        dim: the batched dimension; None: the argument is not batched, and stays as it is.
        rank: dimensions after the batch.

    Example:
        >>> batch_first(torch.zeros(4, 7), 1, 3).shape
        torch.Size([7, 1, 1, 4])
    """
    if dim is None:
        return one
    moved = one.movedim(dim, 0)
    return moved[(slice(None), *(None,) * (rank - moved.dim() + 1))]


TABLES = {"nf4": ("u4", NF4)}
"""Formats of packed codes: the dtype of a code, and a table of the numbers that the codes stand for."""


def numbers_of_codes(
    b: Any, scale_b: Any, zero_b: Any, group: int | None, packed: str | None
) -> torch.Tensor:
    """Return the numbers (..., K, N) that codes and scales stand for, in f32.

    Args:
        b: codes, as in `scaled_mm`.
        scale_b: their scales, or None.
        zero_b: their zero points, or None.
        group: as in `scaled_mm`.
        packed: as in `scaled_mm`.

    Example:
        >>> codes, scales = torch.tensor([[0x71], [0x2F]], dtype=torch.uint8), torch.tensor([[0.5], [2.0]])
        >>> numbers_of_codes(codes, scales, None, 2, "i4").flatten().tolist()
        [0.5, 3.5, -2.0, 4.0]
    """
    if packed is None:
        wide = b.float()
    else:
        codes = torch.stack([b & 15, b >> 4], 1).flatten(0, 1).long()
        kind, table = TABLES.get(packed, (packed, None))
        values = (
            unpack(np.arange(16, dtype=np.uint8), kind)[::2].astype(np.float32) if table is None else table
        )
        wide = torch.tensor(values, dtype=torch.float32, device=b.device)[codes]
    if group is not None:
        zeros, scales = (
            None if one is None else one.float().repeat_interleave(group, 0) for one in (zero_b, scale_b)
        )
        wide = wide if zeros is None else wide - zeros
        return wide if scales is None else wide * scales
    if scale_b is None:
        return wide
    scales = scale_b.float()
    if 0 < scales.dim() < b.dim():
        scales = scales[..., None, :]
    for dim in (-2, -1) if scales.dim() else ():  # blocks along K, and of columns
        if scales.shape[dim] not in (1, wide.shape[dim]):
            scales = scales.repeat_interleave(BLOCK, dim).narrow(dim, 0, wide.shape[dim])
    return wide * scales


# ---------------------------------------------------------------- quantised weights

FORMATS = ("f8e4m3", "f8e4m3_blocks", "i8", "i4", "nf4")
"""Formats of quantised weights."""

IN_GROUPS = ("i4", "nf4")
"""Formats with two codes per byte, and one scale for a group of neighbours along K."""


def quantized(
    weight: torch.Tensor, weights: str, group: int | None, number: torch.dtype
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the codes and scales of a weight (N, K); codes of 4 bits are two in a byte, along K.

    Args:
        weight: the numbers.
        weights: one of `FORMATS`.
        group: neighbours along K that share a scale, for `IN_GROUPS`.
        number: dtype of the scales of groups; others are f32.

    Example:
        >>> codes, scales = quantized(torch.tensor([[1.0, -2.0]]), "i8", None, torch.float32)
        >>> codes.tolist(), (codes * scales).round().tolist()
        ([[64, -127]], [[1.0, -2.0]])
    """
    wide = weight.detach().float()
    if group is not None:
        parts = wide.unflatten(-1, (wide.shape[-1] // group, group))
        scales = _scales(parts.abs().amax(-1), 7 if weights == "i4" else 1).to(number)
        numbers = (parts / scales.float()[..., None]).contiguous()
        if weights == "i4":
            codes = numbers.round().clamp(-8, 7).to(torch.int8).view(torch.uint8) & 15
        else:  # the nearest number of the table
            table = torch.tensor(NF4, device=wide.device)
            codes = torch.bucketize(numbers, (table[1:] + table[:-1]) / 2).to(torch.uint8)
        codes = codes.flatten(-2)
        return codes[:, ::2] | codes[:, 1::2] << 4, scales
    if weights == "f8e4m3_blocks":
        pads = [pad for extent in reversed(wide.shape) for pad in (0, -extent % BLOCK)]
        high, across = (-(-extent // BLOCK) for extent in wide.shape)
        blocks = torch.nn.functional.pad(wide.abs(), pads).view(high, BLOCK, across, BLOCK)
        scales = _scales(blocks.amax((1, 3)), 448)
        (rows, columns), spread = wide.shape, scales.repeat_interleave(BLOCK, 0).repeat_interleave(BLOCK, 1)
        return (wide / spread[:rows, :columns]).to(torch.float8_e4m3fn), scales
    largest = wide.abs().amax(-1) if wide.shape[-1] else wide.new_zeros(len(wide))
    scales = _scales(largest, 127 if weights == "i8" else 448)
    numbers = wide / scales[:, None]
    return (numbers.round().to(torch.int8) if weights == "i8" else numbers.to(torch.float8_e4m3fn)), scales


def _scales(most: torch.Tensor, largest: int) -> torch.Tensor:
    """Return the scales by which the largest magnitudes ``most`` become ``largest``; 1 for zeros."""
    return torch.where(most > 0, most / largest, torch.ones_like(most))


# ---------------------------------------------------------------- hooks of layers

HOOKS = (
    *("_forward_hooks", "_forward_hooks_with_kwargs", "_forward_hooks_always_called"),
    *("_forward_pre_hooks", "_forward_pre_hooks_with_kwargs"),
)
"""Names of the hooks that a quantised layer takes over; hooks of gradients and state dicts do not fit it."""

OBSERVERS = (*HOOKS, "_backward_hooks", "_backward_pre_hooks")
"""Names of all hooks; a layer that has one is called as a module."""


def is_observed(layer: torch.nn.Module) -> bool:
    """Return whether a layer has hooks, or all modules have.

    Args:
        layer: the layer.

    Example:
        >>> is_observed(torch.nn.Linear(2, 2))
        False
    """
    of_all = torch.nn.modules.module._has_any_global_hook
    return any(getattr(layer, name) for name in OBSERVERS) or bool(of_all())
