"""Operations of PyTorch made from kernels: ``op = tilewright.torch.op(kernel)``, and norms of rows."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from inspect import signature
from typing import Any

import torch
from torch import nn
from torch.autograd import forward_ad
from torch.compiler import is_compiling
from torch.nn import functional

from tilewright.dtypes import f32
from tilewright.errors import LaunchError, SignatureError
from tilewright.lang.dataflow.loops import steps, tiles, zeros
from tilewright.lang.functions import rsqrt
from tilewright.lang.program import FunctionSignature
from tilewright.runtime.kernel import Bound, Kernel, kernel
from tilewright.targets.target import CUDA
from tilewright.torch.registry import (
    PLAIN,
    Operation,
    apply_of,
    direct,
    is_new,
    is_traced,
    recorded,
    tensors_of,
    with_replay,
)

_NAMES: set[str] = set()
"""Names of operations; PyTorch knows an operation by its name."""

TYPES = {"tensor": "Tensor", "scalar": "float", "index": "SymInt"}
"""PyTorch's type of each kind of parameter."""


def op(
    kernel: Kernel | Bound,
    *,
    results: Sequence[str] = (),
    dtypes: Mapping[str, torch.dtype] = {},
) -> KernelOperation:
    """Make an operation of PyTorch from a kernel.

    A call takes the kernel's arguments without its results, and returns new tensors for these.  The extents
    of a result are those of the arguments whose dimensions have the same names.  The operation runs under
    `torch.compile`; for gradients see `KernelOperation.backward`.

    Args:
        kernel: the kernel, or the result of `Kernel.bind` if it has constants. Its results must declare the
            names of their dimensions.
        results: the names of its results; default: the parameters that a dataflow kernel stores to. An
            explicit kernel needs them.
        dtypes: dtypes of results by name; default: that of the first argument.

    Returns:
        The operation.

    Raises:
        SignatureError: no argument has a dimension of that name, or the results are not known; or it is no
            kernel.

    Example:
        >>> import tilewright as tw
        >>> @tw.kernel(A="M K", B="N K", C="M N")
        ... def squares(A, B, C):
        ...     for m, n in tw.tiles(C):
        ...         acc = tw.zeros(dtype=tw.f32)
        ...         for k in tw.steps(A.shape[1]):
        ...             acc += A[m, k] @ B[n, k].T
        ...         C[m, n] = acc * acc
        >>> squared = op(squares)
        >>> squared(torch.ones(2, 3), torch.ones(1, 3)).tolist()
        [[9.0], [9.0]]
    """
    if not isinstance(kernel, Kernel | Bound):
        raise SignatureError(
            f"op: {kernel!r} is no kernel", "a function with the decorator tilewright.kernel"
        )
    bound = kernel.bind() if isinstance(kernel, Kernel) else kernel
    return KernelOperation(bound, tuple(results) or bound.stored(), dtypes)


class KernelOperation:
    """An operation of PyTorch made by `op`.

    Args:
        bound: the kernel.
        results: the names of its results.
        dtypes: dtypes of results by name.
    """

    def __init__(
        self, bound: Bound, results: tuple[str, ...], dtypes: Mapping[str, torch.dtype] = {}
    ) -> None:
        self.bound = bound
        self.signature = FunctionSignature(bound.program, results, dtypes, _NAMES)
        _NAMES.add(self.signature.name)
        self._gradient: Callable[..., Mapping[str, Any]] | None = None
        self._read: tuple[str, ...] = ()
        schema = ", ".join(f"{TYPES[one.kind]} {one.name}" for one in self.signature.arguments)
        made = "Tensor" if len(results) == 1 else f"({', '.join('Tensor' for _ in results)})"
        self.operation = Operation(
            f"{self.signature.name}({schema}) -> {made}",
            self._run,
            self._fake,
            self._differentiate,
        )

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        """Launch the kernel on new results.

        Args:
            arguments: those of the kernel without its results.
            named: the others by name.

        Raises:
            LaunchError: the arguments do not fit the kernel, or a tensor wants a gradient and it has none.
        """
        if named:
            rest = [one.name for one in self.signature.arguments][len(arguments) :]
            if wrong := named.keys() ^ {*rest}:
                raise LaunchError(
                    f"{self.signature.name}: {min(wrong)} is missing, given twice, or no argument",
                    f"{', '.join(rest)} by name" if rest else "no argument by name",
                )
            arguments = (*arguments, *(named[name] for name in rest))
        for one, value in self.signature.given(arguments):
            if one.kind == "tensor" and not isinstance(value, torch.Tensor):
                if is_traced(arguments):
                    return self.operation.overload(*arguments)
                raise LaunchError(
                    f"{self.signature.name}: {one.name} is a {type(value).__name__}", "a tensor"
                )
        return self.operation(*arguments)

    def backward(self, gradient: Callable[..., Mapping[str, Any]]) -> Callable[..., Mapping[str, Any]]:
        """Set the function that computes gradients; a decorator.

        Args:
            gradient: the function. A parameter named ``d`` and a result's name receives the gradient of that
                result; one named as an argument or a result receives that, and PyTorch saves it. It returns a
                dictionary of gradients by the names of arguments; an argument that is missing there has none.

        Raises:
            SignatureError: a parameter has another name.

        Example:
            >>> import tilewright as tw
            >>> @tw.kernel(A="M K", B="N K", C="M N")
            ... def product(A, B, C):
            ...     for m, n in tw.tiles(C):
            ...         acc = tw.zeros(dtype=tw.f32)
            ...         for k in tw.steps(A.shape[1]):
            ...             acc += A[m, k] @ B[n, k].T
            ...         C[m, n] = acc
            >>> multiply = op(product)
            >>> @multiply.backward
            ... def gradient(dC, A, B):
            ...     return {"A": multiply(dC, B.mT), "B": multiply(dC.mT, A.mT)}
            >>> a = torch.ones(2, 3, requires_grad=True)
            >>> multiply(a, torch.ones(4, 3)).sum().backward()
            >>> a.grad.tolist()
            [[4.0, 4.0, 4.0], [4.0, 4.0, 4.0]]
        """
        self._read = self.signature.read_by(gradient)
        self._gradient = gradient
        return gradient

    def made(self, arguments: Sequence[Any]) -> list[torch.Tensor]:
        """Return new tensors for the results.

        Args:
            arguments: as for a call.
        """
        first, signature = tensors_of(arguments)[0], self.signature
        shapes = signature.extents([one.shape if isinstance(one, torch.Tensor) else () for one in arguments])
        kinds = (signature.dtypes.get(one.name, first.dtype) for one in signature.results)
        return [first.new_empty(shape, dtype=kind) for shape, kind in zip(shapes, kinds, strict=True)]

    def _fake(self, *arguments: Any) -> Any:
        made = self.made(arguments)
        return made[0] if len(made) == 1 else tuple(made)

    def _run(self, *arguments: Any) -> Any:
        made = [is_new(one) for one in self.made(arguments)]
        named = dict(zip(self.signature.names, (*arguments, *made), strict=True))
        self.bound(*(named[one.name] for one in self.bound.program.parameters))
        return made[0] if len(made) == 1 else tuple(made)

    def _differentiate(self, *arguments: Any) -> Any:
        if self._gradient is None:
            raise LaunchError(
                f"{self.operation.name}: the kernel has no gradient",
                "the decorator backward of the operation, tensor.detach(), or a call under torch.no_grad()",
            )
        return recorded(WithGradient, self, *arguments)


class WithGradient(torch.autograd.Function):
    """A kernel's operation with the gradient of its author."""

    @staticmethod
    def forward(own: KernelOperation, *arguments: Any) -> Any:
        """Launch the kernel."""
        return own.operation.inside(*arguments)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        """Keep the arguments that the author's function reads."""
        own, *arguments = inputs
        results = output if isinstance(output, tuple) else (output,)
        named = dict(zip(own.signature.names, (*arguments, *results), strict=True))
        ctx.own, read = own, own._read
        ctx.shapes = [one.shape if isinstance(one, torch.Tensor) else None for one in arguments]
        ctx.names = [name for name in read if isinstance(named.get(name), torch.Tensor)]
        ctx.numbers = {name: named[name] for name in read if name in named and name not in ctx.names}
        ctx.save_for_backward(*(named[name] for name in ctx.names))

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        """Call the author's function."""
        own = ctx.own
        given = dict(zip(ctx.names, ctx.saved_tensors, strict=True)) | ctx.numbers
        given |= {f"d{one.name}": dy for one, dy in zip(own.signature.results, gradients, strict=True)}
        names = [one.name for one in own.signature.arguments]
        made = own.signature.gradients(own._gradient, {name: given[name] for name in own._read}, names)
        for name, one, like in zip(names, made, ctx.shapes, strict=True):
            if isinstance(one, torch.Tensor) and one.shape != like:
                raise LaunchError(
                    f"the gradient of {own.signature.name} returns {name} of shape {tuple(one.shape)}",
                    f"that of the argument, {tuple(like or ())}",
                )
        return None, *made


# ---------------------------------------------------------------- norms of rows


@kernel(X="M N", weight="N", bias="N", Y="M N", mean="M", scale="M", eps=f32)
def rows_by_mean(X: Any, weight: Any, bias: Any, Y: Any, mean: Any, scale: Any, eps: Any) -> None:
    """``Y = (X - mean) * scale * weight + bias``, where scale is 1 over the root of the variance + eps."""
    for m in tiles(mean):
        x = X[m].to(f32)
        center = x.sum(axis=1) / X.shape[1]
        far = x - center[:, None]
        factor = rsqrt((far * far).sum(axis=1) / X.shape[1] + eps)
        Y[m] = far * factor[:, None] * weight + bias
        mean[m], scale[m] = center, factor


@kernel(X="M N", weight="N", Y="M N", scale="M", eps=f32)
def rows_by_size(X: Any, weight: Any, Y: Any, scale: Any, eps: Any) -> None:
    """``Y = X * scale * weight``, where scale is 1 over the root of the mean of squares + eps."""
    for m in tiles(scale):
        x = X[m].to(f32)
        factor = rsqrt((x * x).sum(axis=1) / X.shape[1] + eps)
        Y[m] = x * factor[:, None] * weight
        scale[m] = factor


@kernel(dY="M N", X="M N", weight="N", mean="M", scale="M", dX="M N")
def gradient_by_mean(dY: Any, X: Any, weight: Any, mean: Any, scale: Any, dX: Any) -> None:
    """``dX = scale (g - mean(g) - h mean(g h))`` with ``g = dY weight`` and ``h = (X - mean) scale``."""
    for m in tiles(mean):
        g = dY[m].to(f32) * weight
        h = (X[m].to(f32) - mean[m][:, None]) * scale[m][:, None]
        average, along = g.sum(axis=1) / X.shape[1], (g * h).sum(axis=1) / X.shape[1]
        dX[m] = scale[m][:, None] * (g - average[:, None] - h * along[:, None])


@kernel(dY="M N", X="M N", weight="N", scale="M", dX="M N")
def gradient_by_size(dY: Any, X: Any, weight: Any, scale: Any, dX: Any) -> None:
    """``dX = scale (g - h mean(g h))`` with ``g = dY weight`` and ``h = X scale``."""
    for m in tiles(scale):
        g, h = dY[m].to(f32) * weight, X[m].to(f32) * scale[m][:, None]
        along = (g * h).sum(axis=1) / X.shape[1]
        dX[m] = scale[m][:, None] * (g - h * along[:, None])


@kernel(dY="M N", X="M N", mean="M", scale="M", dweight="N", dbias="N")
def gradients_of_columns(dY: Any, X: Any, mean: Any, scale: Any, dweight: Any, dbias: Any) -> None:
    """``dweight``, the sums of ``dY * (X - mean) * scale`` along columns, and ``dbias``, those of dY."""
    for n in tiles(dweight):
        by_weight, by_bias = zeros((n,), f32), zeros((n,), f32)
        for m in steps(X.shape[0]):
            g = dY[m, n].to(f32)
            h = (X[m, n].to(f32) - mean[m][:, None]) * scale[m][:, None]
            by_weight.assign(by_weight + (g * h).sum(axis=0))
            by_bias.assign(by_bias + g.sum(axis=0))
        dweight[n], dbias[n] = by_weight, by_bias


@kernel(dY="M N", X="M N", scale="M", dweight="N")
def gradient_of_columns(dY: Any, X: Any, scale: Any, dweight: Any) -> None:
    """``dweight``, the sums of ``dY * X * scale`` along columns."""
    for n in tiles(dweight):
        total = zeros((n,), f32)
        for m in steps(X.shape[0]):
            total.assign(total + (dY[m, n].to(f32) * X[m, n].to(f32) * scale[m][:, None]).sum(axis=0))
        dweight[n] = total


BY_MEAN = op(
    rows_by_mean, results=("Y", "mean", "scale"), dtypes=dict.fromkeys(("mean", "scale"), torch.float32)
)
BY_SIZE = op(rows_by_size, results=("Y", "scale"), dtypes={"scale": torch.float32})
OF_ROWS_BY_MEAN, OF_ROWS_BY_SIZE = (op(one, results=("dX",)) for one in (gradient_by_mean, gradient_by_size))
OF_COLUMNS_BY_MEAN = op(gradients_of_columns, results=("dweight", "dbias"))
OF_COLUMNS_BY_SIZE = op(gradient_of_columns, results=("dweight",))


def _norm(
    x: Any, weight: Any, bias: Any, eps: float, by_mean: bool
) -> tuple[torch.Tensor, torch.Tensor | None, torch.Tensor]:
    """Return the norms of plain tensors, the means of rows if ``by_mean``, and the scales of rows."""
    rows, columns = _rows("layer_norm" if by_mean else "rms_norm", x, weight, bias), weight.reshape(-1)
    if not x.numel():
        raise LaunchError("PyTorch computes norms without elements")
    mean = None
    if by_mean:
        terms = torch.zeros_like(columns) if bias is None else bias.reshape(-1)
        made, mean, scale = BY_MEAN.operation.run(rows, columns, terms, eps)
    else:
        made, scale = BY_SIZE.operation.run(rows, columns, eps)
    # PyTorch refuses changes in place of a view that a `torch.autograd.Function` returns.
    return torch.ops.aten._unsafe_view(made, x.shape), mean, scale


def _gradients_of_norm(
    dy: Any, x: Any, weight: Any, bias: Any, mean: Any, scale: Any, eps: float, needs: tuple[bool, ...]
) -> tuple[torch.Tensor | None, ...]:
    """Return the gradients of x, weight and bias; PyTorch computes those that want gradients themselves."""
    columns = weight.reshape(-1)
    given = dy.reshape(-1, len(columns)), x.reshape(-1, len(columns))
    rows = (scale,) if mean is None else (mean, scale)
    if not torch.is_grad_enabled():
        of_rows = OF_ROWS_BY_SIZE if mean is None else OF_ROWS_BY_MEAN
        found: list[torch.Tensor | None] = [of_rows(*given, columns, *rows) if needs[0] else None, None, None]
        if needs[1] or needs[2]:  # not in frozen layers
            sums = (OF_COLUMNS_BY_SIZE if mean is None else OF_COLUMNS_BY_MEAN)(*given, *rows)
            found[1:] = [sums, None] if mean is None else sums
    elif mean is None:
        found = [*_by_size(given[0], given[1], columns, scale, eps).values(), None]
    else:
        found = [*_by_mean(given[0], given[1], columns, mean, scale, eps, bias).values()]
    likes = (x, weight, weight)
    return tuple(
        one.reshape(like.shape) if need and one is not None else None
        for one, like, need in zip(found, likes, needs, strict=True)
    )


_norm_again = with_replay(_norm, range(3), (3, 4), (3,))
_gradients_of_norm_again = with_replay(_gradients_of_norm, range(6), (6, 7), (6,))


class NormGradient(torch.autograd.Function):
    """Norms of plain tensors, if nothing observes the call."""

    @staticmethod
    def forward(ctx: Any, x: Any, weight: Any, bias: Any, eps: float, by_mean: bool) -> torch.Tensor:
        """Compute the norms, and keep the means and scales of rows."""
        made, mean, scale = _norm_again(x, weight, bias, eps, by_mean)
        ctx.eps = eps
        ctx.save_for_backward(x, weight, bias, mean, scale)
        return made

    @staticmethod
    def backward(ctx: Any, dy: torch.Tensor) -> Any:
        """Return the gradients, by two kernels."""
        x, weight, bias, mean, scale = ctx.saved_tensors
        needs = ctx.needs_input_grad[:3]
        return *_gradients_of_norm_again(dy, x, weight, bias, mean, scale, ctx.eps, needs), None, None


_apply_norm = apply_of(NormGradient)


@BY_MEAN.backward
def _by_mean(
    dY: torch.Tensor,
    X: torch.Tensor,
    weight: torch.Tensor,
    mean: torch.Tensor,
    scale: torch.Tensor,
    eps: float,
    bias: torch.Tensor,
) -> dict[str, torch.Tensor]:
    """The gradients; PyTorch computes those that want gradients themselves."""
    if not torch.is_grad_enabled():
        made = {"X": OF_ROWS_BY_MEAN(dY, X, weight, mean, scale)}
        if weight.requires_grad or bias.requires_grad:  # not in frozen layers
            made["weight"], made["bias"] = OF_COLUMNS_BY_MEAN(dY, X, mean, scale)
        return made
    x, g = X.float(), dY.float()
    far = x - x.mean(1, keepdim=True)
    factor = torch.rsqrt(far.square().mean(1, keepdim=True) + eps)
    h, d = far * factor, g * weight
    dx = factor * (d - d.mean(1, keepdim=True) - h * (d * h).mean(1, keepdim=True))
    kind = X.dtype
    return {"X": dx.to(kind), "weight": (g * h).sum(0).to(kind), "bias": g.sum(0).to(kind)}


@BY_SIZE.backward
def _by_size(
    dY: torch.Tensor, X: torch.Tensor, weight: torch.Tensor, scale: torch.Tensor, eps: float
) -> dict[str, torch.Tensor]:
    """The gradients; PyTorch computes those that want gradients themselves."""
    if not torch.is_grad_enabled():
        made = {"X": OF_ROWS_BY_SIZE(dY, X, weight, scale)}
        if weight.requires_grad:  # not in frozen layers
            made["weight"] = OF_COLUMNS_BY_SIZE(dY, X, scale)
        return made
    x, g = X.float(), dY.float()
    factor = torch.rsqrt(x.square().mean(1, keepdim=True) + eps)
    h, d = x * factor, g * weight
    dx = factor * (d - h * (d * h).mean(1, keepdim=True))
    return {"X": dx.to(X.dtype), "weight": (g * h).sum(0).to(X.dtype)}


SUMMED_WIDE = (torch.float32, torch.float16, torch.bfloat16)
"""Dtypes of norms by kernels, which add in f32."""


def _rows(name: str, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
    """Return ``x`` with one dimension for the rows of a norm, or ``x`` itself if it has no elements.

    Raises:
        LaunchError: an argument is no tensor, or the shapes or dtypes do not fit.
    """
    given = {"x": x, "weight": weight} | ({} if bias is None else {"bias": bias})
    for other, one in given.items():
        if not isinstance(one, torch.Tensor):
            near = f"torch.nn.functional.{name}" if one is None else f"torch.as_tensor({other})"
            raise LaunchError(f"{name}: {other} is a {type(one).__name__}", near)
    for other, one in given.items():
        if one is x:
            continue
        if one.dtype != x.dtype or x.dtype not in SUMMED_WIDE:
            kinds = ", ".join(map(str, SUMMED_WIDE))
            near = f"{other}.to(x.dtype)" if x.dtype in SUMMED_WIDE else f"torch.nn.functional.{name}"
            raise LaunchError(f"{name}: x is {x.dtype}, {other} {one.dtype}; both are one of {kinds}", near)
        if one.shape != weight.shape or x.shape[x.ndim - one.ndim :] != one.shape or not one.ndim:
            text = f"{name}: {other} of shape {tuple(one.shape)} for x of shape {tuple(x.shape)}"
            near = f"a {other} with the last extents of x, such as {tuple(x.shape[-1:])}"
            raise LaunchError(text, near if x.ndim else f"x of shape {tuple(weight.shape)}")
    return x.reshape(-1, weight.numel()) if x.numel() else x


@direct(
    lambda x, weight, bias=None, *, eps=1e-5: _norm_again(x, weight, bias, eps, True)[0],
    lambda x, weight, bias=None, *, eps=1e-5: _apply_norm(x, weight, bias, eps, True),
)
def layer_norm(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None, *, eps: float = 1e-5
) -> torch.Tensor:
    """``(x - mean) / sqrt(variance + eps) * weight + bias`` for each row, in one kernel that reads x once.

    A row is the last dimensions of ``x``, as many as ``weight`` has.  Sums are in f32; the result is rounded
    once, to the dtype of x.  Gradients of x, weight and bias take two more kernels; those of gradients are
    computed by PyTorch.  On GPUs rows of more than 16384 elements of 16 bits are read again.

    Args:
        x: the rows, (..., N), of f32, f16 or bf16.
        weight: the factors of columns, of the dtype of x.
        bias: the terms of columns, of the dtype of x; None: 0.
        eps: is added to the variance.

    Raises:
        LaunchError: an argument is no tensor, or the shapes or dtypes do not fit.

    Source:
        Ba, Kiros and Hinton, Layer Normalization, 2016.

    Example:
        >>> y = layer_norm(torch.tensor([[1.0, 3.0]]), torch.ones(2), torch.zeros(2))
        >>> y.round(decimals=3).tolist()
        [[-1.0, 1.0]]
    """
    rows = _rows("layer_norm", x, weight, bias)
    if not x.numel():
        return functional.layer_norm(x, weight.shape, weight, bias, eps)
    columns = weight.reshape(-1)
    terms = torch.zeros_like(columns) if bias is None else bias.reshape(-1)
    made: torch.Tensor = BY_MEAN(rows, columns, terms, eps)[0]
    return made.reshape(x.shape)


@direct(
    lambda x, weight, *, eps=1e-6: _norm_again(x, weight, None, eps, False)[0],
    lambda x, weight, *, eps=1e-6: _apply_norm(x, weight, None, eps, False),
)
def rms_norm(x: torch.Tensor, weight: torch.Tensor, *, eps: float = 1e-6) -> torch.Tensor:
    """``x / sqrt(mean of squares + eps) * weight`` for each row, in one kernel that reads x once.

    A row is the last dimensions of ``x``, as many as ``weight`` has.  Sums are in f32; the result is rounded
    once, to the dtype of x.  Gradients of x and weight take two more kernels; those of gradients are computed
    by PyTorch.

    Args:
        x: the rows, (..., N), of f32, f16 or bf16.
        weight: the factors of columns, of the dtype of x.
        eps: is added to the mean of squares.

    Raises:
        LaunchError: an argument is no tensor, or the shapes or dtypes do not fit.

    Source:
        Zhang and Sennrich, Root Mean Square Layer Normalization, 2019.

    Example:
        >>> rms_norm(torch.tensor([[1.0, -7.0]]), torch.full((2,), 5.0)).round().tolist()
        [[1.0, -7.0]]
    """
    rows = _rows("rms_norm", x, weight)
    if not x.numel():
        return functional.rms_norm(x, weight.shape, weight, eps)
    made: torch.Tensor = BY_SIZE(rows, weight.reshape(-1), eps)[0]
    return made.reshape(x.shape)


SERVED_DEVICES, LEAST_ELEMENTS = (CUDA.name,), 1 << 20
"""Devices and least elements of the norms that modules compute by kernels.

A call takes the host about 25 us longer than a call of PyTorch, whose kernel for fewer elements takes less
than 10 us on an H200.  On processors PyTorch's LayerNorm takes 0.3 to 0.6 of the time of our kernel.
"""


def _is_served(layer: nn.Module, x: torch.Tensor) -> bool:
    """Return whether a kernel computes a norm faster than PyTorch, without conversions.

    Compiled graphs, traces, transforms of `torch.func`, and forward mode get PyTorch's norms.
    """
    weight, bias = layer._parameters.get("weight"), layer._parameters.get("bias")
    if is_compiling() or not {type(x), type(weight)} <= PLAIN or torch._C._functorch.peek_interpreter_stack():
        return False
    if torch._C._get_tracing_state() is not None or forward_ad._current_level >= 0 or x.is_nested:
        return False
    assert weight is not None, "its type is that of a parameter"
    kind, extents = x.dtype, weight.shape
    if x.device.type not in SERVED_DEVICES or x.numel() < LEAST_ELEMENTS or kind not in SUMMED_WIDE:
        return False
    if kind != torch.float32 and torch.is_autocast_enabled(x.device.type):
        return False  # autocast converts to f32
    fits = weight.dtype == kind and x.shape[x.ndim - weight.ndim :] == extents
    return fits and (bias is None or (bias.dtype, bias.shape) == (kind, extents))


class LayerNorm(nn.LayerNorm):
    """`torch.nn.LayerNorm` by `layer_norm`; it has the same parameters and state dict.

    Kernels compute norms of `LEAST_ELEMENTS` elements or more on GPUs.  PyTorch computes all others: norms of
    fewer elements, on processors, in compiled graphs and traces, under `torch.func`, in forward mode, of f64,
    of nested tensors, if dtypes differ, or without a weight.

    Example:
        >>> LayerNorm(64)(torch.ones(5, 64)).shape
        torch.Size([5, 64])
    """

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the norms of rows (..., N)."""
        if not _is_served(self, x):
            return super().forward(x)
        return layer_norm(x, self.weight, self.bias, eps=self.eps)


class RMSNorm(nn.RMSNorm):
    """`torch.nn.RMSNorm` by `rms_norm`; it has the same parameters and state dict.

    Kernels and PyTorch compute the same norms as those of `LayerNorm`.  `convert` also puts it in place of
    the norms of `transformers` that have ``variance_epsilon``, such as Llama's.

    Example:
        >>> RMSNorm(64)(torch.ones(5, 64)).shape
        torch.Size([5, 64])
    """

    replaced: type[nn.Module] = nn.RMSNorm

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the norms of rows (..., N)."""
        if not _is_served(self, x):
            made: torch.Tensor = self.replaced.forward(self, x)
            return made
        eps = getattr(self, "variance_epsilon", self.eps)  # PyTorch's default is that of f32 for halves, too
        return rms_norm(x, self.weight, eps=torch.finfo(torch.float32).eps if eps is None else eps)


def of_norm(layer: Any) -> dict[str, Any]:
    """Return the attributes that a `LayerNorm` or `RMSNorm` has, and the layer that it replaces has not.

    Example:
        >>> of_norm(nn.LayerNorm(4)), of_norm(nn.RMSNorm(4))["replaced"]
        ({}, <class 'torch.nn.modules.normalization.RMSNorm'>)
    """
    if isinstance(layer, nn.LayerNorm | nn.RMSNorm):
        return {} if isinstance(layer, nn.LayerNorm) else {"replaced": type(layer)}
    words = {"normalized_shape": tuple(layer.weight.shape), "eps": layer.variance_epsilon}
    return {**words, "elementwise_affine": True, "replaced": type(layer)}


def is_rms_norm(layer: nn.Module) -> bool:
    """Return whether a module of `transformers` computes the numbers of `RMSNorm`.

    Its ``forward`` is called with two rows: large numbers, and numbers so small that ``eps`` counts.  Norms
    that take a second tensor, such as the gate of Mamba's, are others.

    Example:
        >>> is_rms_norm(nn.LayerNorm(4))
        False
    """
    eps, weight, kind = getattr(layer, "variance_epsilon", None), layer._parameters.get("weight"), type(layer)
    names = {name for name, _ in layer.named_parameters()} | {name for name, _ in layer.named_buffers()}
    if not isinstance(eps, float) or type(weight) not in PLAIN or names != {"weight"}:
        return False
    assert weight is not None, "its type is that of a parameter"
    if weight.ndim != 1 or weight.is_meta or not kind.__module__.startswith("transformers."):
        return False
    if len(signature(kind.forward).parameters) != 2:
        return False
    row = torch.linspace(-1, 2, weight.numel(), device=weight.device, dtype=torch.float32)
    x = torch.stack([row, row * eps**0.5]).to(weight.dtype)
    with torch.no_grad():
        like = functional.rms_norm(x.float(), weight.shape, weight.float(), eps)
        return torch.allclose(kind.forward(layer, x).float(), like, rtol=2e-2, atol=1e-6)
