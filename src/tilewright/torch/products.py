"""`matmul`, `linear`, `einsum` and `complex_matmul` for PyTorch, with their gradients.

Gradients are products again, computed by the same operations, so that they have gradients themselves.  A
product keeps its operands for them, and its result if the activation's slope follows from it; PyTorch keeps
the same tensors.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from string import ascii_letters
from typing import Any

import torch

from tilewright.dtypes import DType
from tilewright.errors import LaunchError
from tilewright.ops import complex_matmul as of_complex
from tilewright.ops import einsum as of_einsum
from tilewright.ops import matmul as of_matmul
from tilewright.ops.contraction import Subscripts, read_subscripts
from tilewright.ops.results import result_dtype
from tilewright.ops.wanted import Wanted, check_derivative, check_words
from tilewright.torch.registry import Operation, batch_first, dtype_of, recorded, torch_dtype

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
"""Activations after a product of which a gradient is wanted, if the product does not compute them itself."""

FROM_RESULT = {
    "relu": lambda dy, y: aten.threshold_backward(dy, y, 0),
    "sigmoid": aten.sigmoid_backward,
    "tanh": aten.tanh_backward,
}
"""The gradient before an activation, from the gradient after it and the activation's result."""

SLOPES = {
    "relu": lambda x: (x > 0).to(x.dtype),
    "gelu": lambda x: aten.gelu_backward(torch.ones_like(x), x),
    "gelu_tanh": lambda x: aten.gelu_backward(torch.ones_like(x), x, approximate="tanh"),
    "silu": lambda x: torch.sigmoid(x) * (1 + x * (1 - torch.sigmoid(x))),
    "sigmoid": lambda x: torch.sigmoid(x) * (1 - torch.sigmoid(x)),
    "tanh": lambda x: 1 - torch.tanh(x) ** 2,
}
"""The derivatives of activations, with gradients of their own."""


def activated(name: str, x: torch.Tensor) -> torch.Tensor:
    """Return an activation of a tensor, by PyTorch.

    Raises:
        LaunchError: the library has no activation of that name.

    Example:
        >>> activated("relu", torch.tensor([-1.0, 2.0])).tolist()
        [0.0, 2.0]
    """
    if name not in ACTIVATIONS:
        check_words(Wanted(activation=name))
    return ACTIVATIONS[name](x)


def _own(dtype: torch.dtype | None) -> DType | None:
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
    return torch_dtype(result_dtype(kinds, Wanted(out_dtype=_own(out_dtype)), op))


def product_shape(a: torch.Tensor, b: torch.Tensor) -> tuple[Any, ...]:
    """Return the shape of ``a @ b`` by NumPy's rules.

    Raises:
        LaunchError: a scalar.

    Example:
        >>> product_shape(torch.ones(5, 1, 2, 3), torch.ones(4, 3, 6))
        (5, 4, 2, 6)
    """
    if not a.dim() or not b.dim():
        raise LaunchError("matmul of a scalar; nearest legal choice: an array of one dimension or more")
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


def column_sums(rows: torch.Tensor) -> torch.Tensor:
    """Return the sum of each column, over all other dimensions: a product with ones, which no memory holds.

    Example:
        >>> column_sums(torch.ones(3, 2)).tolist()
        [3.0, 3.0]
    """
    flat = rows if rows.dim() == 2 else rows.flatten(0, -2) if rows.dim() > 2 else rows[None]
    return matmul(rows.new_ones(()).expand(flat.shape[0]), flat)


def _broadcast(letters: str, one: torch.Tensor, shape: Sequence[Any]) -> tuple[torch.Tensor, str]:
    """An operand without dimensions of one element before its matrix, and the letters of the others."""
    lead = one.shape[:-2]
    named = letters[len(shape) - len(lead) : len(shape)]
    kept = [at for at, extent in enumerate(lead) if extent != 1]
    return one.reshape(*(lead[at] for at in kept), *one.shape[-2:]), "".join(named[at] for at in kept)


def _by_letters(
    one: torch.Tensor, other: torch.Tensor, like: torch.Tensor, axes: str, **options: Any
) -> torch.Tensor:
    """A gradient of an operand that batches repeat: one contraction, which also sums over batches.

    Args:
        one: the first factor, a batch of matrices.
        other: the second factor.
        like: the operand.
        axes: letters of the matrices of ``one``, ``other`` and the result, e.g. ``"mn,kn->mk"``.
        options: arguments of `einsum`.
    """
    shape = torch.broadcast_shapes(one.shape[:-2], other.shape[:-2])
    (first, second), result = axes.partition("->")[0].split(","), axes.partition("->")[2]
    x, of_x = _broadcast(ascii_letters, one, shape)
    y, of_y = _broadcast(ascii_letters, other, shape)
    _, kept = _broadcast(ascii_letters, like, shape)
    # Letters of batches are lower-case, and there are fewer than 13 of them.
    found = einsum(f"{of_x}{first.upper()},{of_y}{second.upper()}->{kept}{result.upper()}", x, y, **options)
    return found.reshape(like.shape)


def gradient_of_a(dy: torch.Tensor, a: torch.Tensor, b: torch.Tensor, **options: Any) -> torch.Tensor:
    """Return ``dA = dY Bᵀ``, summed over the batches that repeat ``a``.

    Args:
        dy: the gradient of the result, of two dimensions or more.
        a: the first operand, likewise.
        b: the second operand, likewise.
        options: arguments of `matmul`.

    Example:
        >>> dy, a, b = torch.ones(4, 2, 5), torch.ones(2, 3), torch.ones(4, 3, 5)
        >>> gradient_of_a(dy, a, b)[0].tolist()
        [20.0, 20.0, 20.0]
    """
    if dy.shape[:-2] == a.shape[:-2]:
        return matmul(dy, b.mT, **options)
    return _by_letters(dy, b, a, "mn,kn->mk", **options)


def gradient_of_b(dy: torch.Tensor, a: torch.Tensor, b: torch.Tensor, **options: Any) -> torch.Tensor:
    """Return ``dB = Aᵀ dY``, summed over the batches that repeat ``b``.

    Args:
        dy: the gradient of the result, of two dimensions or more.
        a: the first operand, likewise.
        b: the second operand, likewise.
        options: arguments of `matmul`.

    Example:
        >>> dy, a, b = torch.ones(4, 2, 5), torch.ones(4, 2, 3), torch.ones(3, 5)
        >>> gradient_of_b(dy, a, b)[0].tolist()
        [8.0, 8.0, 8.0, 8.0, 8.0]
    """
    if dy.shape[:-2] == b.shape[:-2]:
        return matmul(a.mT, dy, **options)
    if b.dim() == 2 and a.shape[:-2] == dy.shape[:-2]:
        return matmul(a.flatten(0, -2).mT, dy.flatten(0, -2), **options)
    return _by_letters(a, dy, b, "mk,mn->kn", **options)


def _as_matrices(a: torch.Tensor, b: torch.Tensor, dy: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """The operands and the result's gradient, with the dimensions that vectors lack."""
    if b.dim() == 1:
        b, dy = b[:, None], dy[..., None]
    if a.dim() == 1:
        a, dy = a[None], dy.unsqueeze(-2)
    return a, b, dy


# ---------------------------------------------------------------- matmul


class MatmulGradient(torch.autograd.Function):
    """``y = activation(alpha * (a @ b) + beta * c + bias) + residual``, for activations of `FROM_RESULT`."""

    @staticmethod
    def forward(
        a: Any,
        b: Any,
        c: Any,
        bias: Any,
        residual: Any,
        alpha: float,
        beta: float | None,
        activation: str | None,
        precision: str,
        out_dtype: torch.dtype | None,
    ) -> Any:
        """Compute ``y`` in one kernel."""
        words = (alpha, beta, activation, None, precision, out_dtype)
        return MATMUL.inside(a, b, c, bias, None, residual, *words)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: torch.Tensor) -> None:
        """Keep the operands; and the result, if an activation's slope needs it."""
        a, b, c, bias, residual, *ctx.words = inputs
        needs = ctx.needs_input_grad
        ctx.added = [
            None if one is None or not need else (one.shape, one.dtype)
            for one, need in zip((c, bias, residual), needs[2:5], strict=True)
        ]
        ctx.kinds = a.dtype, a.shape, b.shape
        kept = (a if needs[1] else None, b if needs[0] else None)
        ctx.save_for_backward(*kept, output if ctx.words[2] is not None else None)

    @staticmethod
    def backward(ctx: Any, dy: torch.Tensor) -> Any:
        """Return the gradients of the arrays, by products."""
        (a, b, y), (alpha, beta, activation, precision, _) = ctx.saved_tensors, ctx.words
        kind, of_a, of_b = ctx.kinds
        c, bias, residual = ctx.added
        dz = dy if activation is None else FROM_RESULT[activation](dy, y)
        d_a = d_b = None
        if a is not None or b is not None:
            factor = dz if dz.dtype == kind else dz.to(kind)
            # Only the shape of an operand that is not kept is needed.
            one = a if a is not None else factor.new_empty(()).expand(of_a)
            other = b if b is not None else factor.new_empty(()).expand(of_b)
            if len(of_a) < 2 or len(of_b) < 2:
                one, other, factor = _as_matrices(one, other, factor)
            options: dict[str, Any] = {"alpha": alpha, "precision": precision}
            if b is not None:
                d_a = gradient_of_a(factor, one, other, **options)
                d_a = d_a if len(of_a) > 1 else d_a.reshape(of_a)
            if a is not None:
                d_b = gradient_of_b(factor, one, other, **options)
                d_b = d_b if len(of_b) > 1 else d_b.reshape(of_b)
        d_c = None if c is None else (dz if beta is None else beta * dz).sum_to_size(c[0]).to(c[1])
        d_bias = None if bias is None else column_sums(dz).to(bias[1])
        d_residual = None if residual is None else dy.sum_to_size(residual[0]).to(residual[1])
        return d_a, d_b, d_c, d_bias, d_residual, None, None, None, None, None


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


def _run_matmul(
    a: Any,
    b: Any,
    c: Any,
    bias: Any,
    multiply: Any,
    residual: Any,
    alpha: float,
    beta: float | None,
    activation: str | None,
    derivative: str | None,
    precision: str,
    out_dtype: torch.dtype | None,
) -> Any:
    terms = (c, bias, multiply, residual, activation, derivative, out_dtype)
    if alpha == 1 and precision == "exact" and all(one is None for one in terms):
        return of_matmul.matmul(a, b)  # fewer words are found sooner
    given: dict[str, Any] = {}
    if c is not None:
        given = {"c": c, "beta": beta}
    named = {"bias": bias, "multiply": multiply, "residual": residual, "activation": activation}
    given |= {name: one for name, one in (*named.items(), ("derivative", derivative)) if one is not None}
    if alpha != 1:
        given["alpha"] = alpha
    if precision != "exact":
        given["precision"] = precision
    if out_dtype is not None:
        given["out_dtype"] = _own(out_dtype)
    return of_matmul.matmul(a, b, **given)


def _fake_matmul(
    a: Any, b: Any, c: Any, bias: Any, multiply: Any, residual: Any, *words: Any
) -> torch.Tensor:
    kind = result_like("matmul", words[-1], a=a, b=b, c=c, bias=bias, multiply=multiply, residual=residual)
    return torch.Tensor.new_empty(a, product_shape(a, b), dtype=kind)


def _matmul_with_gradient(
    a: Any,
    b: Any,
    c: Any,
    bias: Any,
    multiply: Any,
    residual: Any,
    alpha: float,
    beta: float | None,
    activation: str | None,
    derivative: str | None,
    *words: Any,
) -> Any:
    check_derivative("matmul", derivative, multiplies=multiply is not None)
    is_last = multiply is None and (activation is None or (activation in FROM_RESULT and residual is None))
    if is_last:
        return recorded(MatmulGradient, a, b, c, bias, residual, alpha, beta, activation, *words)
    sums = recorded(MatmulGradient, a, b, c, bias, None, alpha, beta, None, *words)
    return finished(sums, activation, multiply, derivative, residual)


def _batched_matmul(size: int, dims: Sequence[Any], a: Any, b: Any, *args: Any) -> Any:
    *terms, alpha, beta, activation, derivative, precision, kind = args
    words = (alpha, beta, activation, derivative, precision, kind)
    of_a, of_b, *others = dims
    rank_a, rank_b = a.dim() - (of_a is not None), b.dim() - (of_b is not None)
    if others[1] is not None:
        return None  # a bias for each call
    if rank_a == 1 and rank_b == 2 and of_b is None:  # each vector is a row of one matrix
        rank = 1
        given = [a.movedim(of_a, 0)] if of_a is not None else [a.expand(size, -1)]
        given.append(b)
    elif min(rank_a, rank_b) > 1:
        rank = max(rank_a, rank_b)
        given = [batch_first(a, of_a, rank), batch_first(b, of_b, rank)]
    elif all(one is None for one in terms):
        one = a if of_a is None else a.movedim(of_a, 0)
        other = b if of_b is None else b.movedim(of_b, 0)
        one, other = one.unsqueeze(-2) if rank_a == 1 else one, other[..., None] if rank_b == 1 else other
        rank = max(rank_a, rank_b, 2)
        given = [batch_first(x, None if d is None else 0, rank) for x, d in ((one, of_a), (other, of_b))]
        made = MATMUL(*given, *terms, *words)
        made = made.squeeze(-1) if rank_b == 1 else made
        return made if rank_a > 1 else made.squeeze(-1 if rank_b == 1 else -2)
    else:
        return None
    pairs = zip(terms, others, strict=False)
    return MATMUL(
        *given, *(one if one is None else batch_first(one, dim, rank) for one, dim in pairs), *words
    )


MATMUL = Operation(
    "matmul(Tensor a, Tensor b, Tensor? c, Tensor? bias, Tensor? multiply, Tensor? residual, float alpha, "
    "float? beta, str? activation, str? derivative, str precision, ScalarType? out_dtype) -> Tensor",
    _run_matmul,
    _fake_matmul,
    _matmul_with_gradient,
    _batched_matmul,
    cast=range(6),
)


def matmul(
    a: torch.Tensor,
    b: torch.Tensor,
    *,
    c: torch.Tensor | None = None,
    alpha: float = 1.0,
    beta: float | None = None,
    bias: torch.Tensor | None = None,
    activation: str | None = None,
    multiply: torch.Tensor | None = None,
    derivative: str | None = None,
    residual: torch.Tensor | None = None,
    precision: str = "exact",
    out_dtype: torch.dtype | None = None,
) -> torch.Tensor:
    """``activation(alpha * (a @ b) + beta * c + bias) * multiply + residual``, with gradients.

    One kernel computes it, as `tilewright.matmul` does.  If a gradient is wanted, so does it with
    ``residual``, or with an activation whose slope follows from its result (``"relu"``, ``"sigmoid"``,
    ``"tanh"``); PyTorch computes other activations, and ``multiply``, after the kernel.

    The gradients are ``dA = alpha dZ Bᵀ`` and ``dB = alpha Aᵀ dZ``, where ``dZ`` is the gradient before the
    activation, summed over the batches that repeat an operand; that of ``bias`` is the sum of the rows of
    ``dZ``.  All are products by the library's kernels, and have gradients themselves.

    Args:
        a: tensor (..., M, K), or a vector (K,), of any strides. Complex tensors take no terms but ``c``.
        b: tensor (..., K, N), or a vector (K,), of the same dtype.
        c: tensor that is broadcast to the result.
        alpha: a number.
        beta: the factor of ``c``; default: 1.
        bias: tensor (N,).
        activation: ``"relu"``, ``"gelu"``, ``"gelu_tanh"``, ``"silu"``, ``"sigmoid"`` or ``"tanh"``.
        multiply: tensor that is broadcast to the result.
        derivative: the name of an activation: multiplies by ``activation'(multiply)`` instead.
        residual: tensor that is broadcast to the result.
        precision: as in `tilewright.matmul`; gradients have the same.
        out_dtype: dtype of the result; default: as in `tilewright.matmul`. Gradients are rounded to the
            dtypes of the operands before they are multiplied.

    Returns:
        A new contiguous tensor.

    Raises:
        LaunchError: shapes or devices do not fit, or a tensor has a tangent of forward mode.
        DTypeError: an unsupported dtype or mixture.

    Example:
        >>> a = torch.tensor([[1.0, 2.0]], requires_grad=True)
        >>> y = matmul(a, torch.tensor([[3.0], [-4.0]]), activation="relu", bias=torch.tensor([6.0]))
        >>> y.backward()
        >>> y.tolist(), a.grad.tolist()
        ([[1.0]], [[3.0, -4.0]])
    """
    if a.is_complex():
        if any(one is not None for one in (bias, activation, multiply, residual)):
            raise LaunchError(
                "tilewright.torch.matmul of complex tensors has no bias, activation, multiply or residual; "
                "nearest legal choice: c=, or an operation on the result"
            )
        return complex_matmul(a, b, c, alpha=alpha, beta=beta, precision=precision, out_dtype=out_dtype)
    return MATMUL(
        a, b, c, bias, multiply, residual, alpha, beta, activation, derivative, precision, out_dtype
    )


def linear(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None = None,
    *,
    activation: str | None = None,
    residual: torch.Tensor | None = None,
    precision: str = "exact",
) -> torch.Tensor:
    """``activation(x @ weightᵀ + bias) + residual``, with gradients.

    Without ``activation`` and ``residual`` it is `torch.nn.functional.linear`.

    Args:
        x: tensor (..., K).
        weight: tensor (N, K), or a vector (K,).
        bias: tensor (N,).
        activation: as in `matmul`.
        residual: tensor that is broadcast to the result.
        precision: as in `matmul`.

    Returns:
        A new tensor (..., N).

    Raises:
        LaunchError: shapes or devices do not fit.
        DTypeError: an unsupported dtype or mixture.

    Example:
        >>> linear(torch.ones(2, 3), torch.ones(1, 3), torch.tensor([0.5])).tolist()
        [[3.5], [3.5]]
    """
    if weight.dim() < 2 and bias is not None:  # the result has no columns
        return matmul(x, weight, c=bias, activation=activation, residual=residual, precision=precision)
    turned = weight if weight.dim() < 2 else weight.mT
    return matmul(x, turned, bias=bias, activation=activation, residual=residual, precision=precision)


# ---------------------------------------------------------------- complex numbers


class ComplexGradient(torch.autograd.Function):
    """``y = alpha * op(a) @ op(b) + beta * c`` of complex tensors."""

    @staticmethod
    def forward(*args: Any) -> Any:
        """Compute ``y`` in one kernel."""
        return COMPLEX_MATMUL.inside(*args)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: torch.Tensor) -> None:
        """Keep the operands."""
        a, b, c, *ctx.words = inputs
        ctx.of_c = None if c is None or not ctx.needs_input_grad[2] else (c.shape, c.dtype)
        ctx.save_for_backward(a, b)

    @staticmethod
    def backward(ctx: Any, dy: torch.Tensor) -> Any:
        """Return the gradients as PyTorch defines them: the conjugates of the derivatives."""
        (a, b), (alpha, beta, conj_a, conj_b, precision, _) = ctx.saved_tensors, ctx.words
        one, other, factor = _as_matrices(a, b, dy.to(a.dtype))
        d_a = d_b = d_c = None
        # With D = conj(alpha) dY op(B)ᴴ, dA is D, or conj(D) if `a` was conjugated; and so for `b`.
        if ctx.needs_input_grad[0]:
            scale = alpha if conj_a else alpha.conjugate()
            options = {"alpha": scale, "conjugate_a": conj_a, "conjugate_b": conj_b == conj_a}
            if factor.shape[:-2] == one.shape[:-2]:
                d_a = complex_matmul(factor, other.mT, precision=precision, **options)
            else:
                d_a = _by_letters(factor, other, one, "mn,kn->mk", precision=precision, **options)
            d_a = d_a.reshape(a.shape)
        if ctx.needs_input_grad[1]:
            scale = alpha if conj_b else alpha.conjugate()
            options = {"alpha": scale, "conjugate_a": conj_a == conj_b, "conjugate_b": conj_b}
            if factor.shape[:-2] == other.shape[:-2]:
                d_b = complex_matmul(one.mT, factor, precision=precision, **options)
            else:
                d_b = _by_letters(one, factor, other, "mk,mn->kn", precision=precision, **options)
            d_b = d_b.reshape(b.shape)
        if ctx.of_c is not None:
            shape, kind = ctx.of_c
            scaled = dy if beta is None else beta.conjugate() * dy
            d_c = scaled.sum_to_size(shape).to(kind)
        return d_a, d_b, d_c, None, None, None, None, None, None


def _run_complex(
    a: Any,
    b: Any,
    c: Any,
    alpha: complex,
    beta: complex | None,
    conjugate_a: bool,
    conjugate_b: bool,
    precision: str,
    out_dtype: torch.dtype | None,
) -> Any:
    return of_complex.complex_matmul(
        a,
        b,
        c,
        alpha=alpha,
        beta=None if c is None else beta,
        conjugate_a=conjugate_a,
        conjugate_b=conjugate_b,
        precision=precision,
        out_dtype=_own(out_dtype),
    )


def _fake_complex(a: Any, b: Any, c: Any, *words: Any) -> torch.Tensor:
    return torch.Tensor.new_empty(a, product_shape(a, b), dtype=words[-1] or a.dtype)


COMPLEX_MATMUL = Operation(
    "complex_matmul(Tensor a, Tensor b, Tensor? c, Scalar alpha, Scalar? beta, bool conjugate_a, bool "
    "conjugate_b, str precision, ScalarType? out_dtype) -> Tensor",
    _run_complex,
    _fake_complex,
    partial(recorded, ComplexGradient),
)


def complex_matmul(
    a: torch.Tensor,
    b: torch.Tensor,
    c: torch.Tensor | None = None,
    *,
    alpha: complex = 1.0,
    beta: complex | None = None,
    conjugate_a: bool = False,
    conjugate_b: bool = False,
    precision: str = "exact",
    out_dtype: torch.dtype | None = None,
) -> torch.Tensor:
    """``alpha * op(a) @ op(b) + beta * c`` of complex tensors, where ``op`` may conjugate, with gradients.

    Args:
        a: tensor (..., M, K), or a vector (K,), of complex64, complex128 or complex32.
        b: tensor (..., K, N), or a vector (K,), of the same dtype.
        c: tensor that is broadcast to the result.
        alpha: a number.
        beta: the factor of ``c``; default: 1.
        conjugate_a: whether to multiply the conjugate of ``a``.
        conjugate_b: the same for ``b``.
        precision: as in `tilewright.complex_matmul`.
        out_dtype: dtype of the result; default: that of ``a``.

    Returns:
        A new contiguous tensor.

    Raises:
        LaunchError: shapes or devices do not fit.
        DTypeError: real tensors, an unsupported dtype or a mixture.

    Example:
        >>> a = torch.tensor([[1, 1j]])
        >>> complex_matmul(a, a.mT, conjugate_a=True).tolist()
        [[(2+0j)]]
    """
    return COMPLEX_MATMUL(a, b, c, alpha, beta, conjugate_a, conjugate_b, precision, out_dtype)


# ---------------------------------------------------------------- einsum


class EinsumGradient(torch.autograd.Function):
    """``y = alpha * contraction(op(a), op(b))``."""

    @staticmethod
    def forward(*args: Any) -> Any:
        """Compute ``y`` in one kernel."""
        return EINSUM.inside(*args)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: torch.Tensor) -> None:
        """Keep the operands."""
        ctx.subscripts, a, b, *ctx.words = inputs
        ctx.save_for_backward(a, b)

    @staticmethod
    def backward(ctx: Any, dy: torch.Tensor) -> Any:
        """Return the gradients, by contractions."""
        (a, b), (alpha, conj_a, conj_b, precision, _) = ctx.saved_tensors, ctx.words
        named = read_subscripts(ctx.subscripts, (a.dim(), b.dim()))
        words = (alpha, precision)
        made = [None, None]
        if ctx.needs_input_grad[1]:
            made[0] = _gradient_of_factor(
                dy.to(a.dtype), b, a, (named.out, named.b, named.a), conj_a, conj_b, words
            )
        if ctx.needs_input_grad[2]:
            made[1] = _gradient_of_factor(
                dy.to(a.dtype), a, b, (named.out, named.a, named.b), conj_b, conj_a, words
            )
        return None, *made, None, None, None, None, None


def _gradient_of_factor(
    dy: torch.Tensor,
    other: torch.Tensor,
    one: torch.Tensor,
    labels: tuple[Sequence[str], Sequence[str], Sequence[str]],
    conj_one: bool,
    conj_other: bool,
    words: tuple[complex, str],
) -> torch.Tensor:
    """The gradient of one factor of a contraction.

    Args:
        dy: the gradient of the result.
        other: the other factor.
        one: the factor.
        labels: the labels of the axes of these three.
        conj_one: whether the factor was conjugated.
        conj_other: whether the other one was.
        words: alpha, and the precision.
    """
    of_dy, of_other, of_one = labels
    letters = dict(zip(dict.fromkeys((*of_dy, *of_other, *of_one)), ascii_letters, strict=False))
    # Axes of one element are left out: they are repeated, or make no difference.
    extents = dict(zip(of_one, one.shape, strict=True))
    text, factors = list[str](), list[torch.Tensor]()
    for factor, own in ((dy, of_dy), (other, of_other)):
        kept = [at for at, extent in enumerate(factor.shape) if extent != 1 or own.count(own[at]) > 1]
        text.append("".join(letters[own[at]] for at in kept))
        factors.append(factor.reshape([factor.shape[at] for at in kept]))
    result = [label for label in extents if extents[label] != 1 and letters[label] in text[0] + text[1]]
    alpha, precision = words
    found = einsum(
        f"{','.join(text)}->{''.join(letters[label] for label in result)}",
        *factors,
        alpha=alpha if conj_one else alpha.conjugate(),
        conjugate_a=conj_one,
        conjugate_b=conj_other == conj_one,
        precision=precision,
    )
    # Axes that neither of the two has were summed over, or have one element; labels may occur twice.
    unique = [*extents]
    shape = [extents[label] if label in result else 1 for label in unique]
    found = found.reshape(shape).expand([extents[label] for label in unique])
    for at, label in enumerate(of_one):
        if label in of_one[:at]:  # an operand's diagonal was read
            first = of_one.index(label)
            found = torch.diag_embed(found.movedim(first, -1), dim1=first, dim2=at)
    return found


def _run_einsum(
    subscripts: str,
    a: Any,
    b: Any,
    alpha: complex,
    conjugate_a: bool,
    conjugate_b: bool,
    precision: str,
    out_dtype: torch.dtype | None,
) -> Any:
    return of_einsum.einsum(
        subscripts,
        a,
        b,
        alpha=alpha,
        conjugate_a=conjugate_a,
        conjugate_b=conjugate_b,
        precision=precision,
        out_dtype=_own(out_dtype),
    )


def _extents(named: Subscripts, a: torch.Tensor, b: torch.Tensor) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for labels, one in ((named.a, a), (named.b, b)):
        for label, extent in zip(labels, one.shape, strict=True):
            known = found.get(label, 1)
            found[label] = torch.broadcast_shapes((known,), (extent,))[0]
    return found


def _fake_einsum(subscripts: str, a: Any, b: Any, *words: Any) -> torch.Tensor:
    named = read_subscripts(subscripts, (a.dim(), b.dim()))
    extents = _extents(named, a, b)
    kind = words[-1] or a.dtype if a.is_complex() else result_like("einsum", words[-1], a=a, b=b)
    return torch.Tensor.new_empty(a, [extents[label] for label in named.out], dtype=kind)


def _batched_einsum(size: int, dims: Sequence[Any], subscripts: str, a: Any, b: Any, *words: Any) -> Any:
    ranks = [one.dim() - (dim is not None) for one, dim in zip((a, b), dims[1:], strict=False)]
    named = read_subscripts(subscripts, ranks)
    letters = dict(zip(dict.fromkeys((*named.a, *named.b)), ascii_letters, strict=False))
    if len(letters) == len(ascii_letters):
        return None
    batch, given, text = ascii_letters[-1], list[torch.Tensor](), list[str]()
    for one, dim, own in zip((a, b), dims[1:], (named.a, named.b), strict=False):
        given.append(one if dim is None else one.movedim(dim, 0))
        text.append(("" if dim is None else batch) + "".join(letters[label] for label in own))
    result = batch + "".join(letters[label] for label in named.out)
    if any(label.isdigit() for label in letters):  # only axes at `...` are repeated
        shapes = [one.shape[dim is not None :] for one, dim in zip(given, dims[1:], strict=False)]
        for label in filter(str.isdigit, letters):
            found = {
                shape[own.index(label)]
                for shape, own in zip(shapes, (named.a, named.b), strict=True)
                if label in own
            }
            if len(found) > 1:
                return None
    return EINSUM(f"{','.join(text)}->{result}", *given, *words)


EINSUM = Operation(
    "einsum(str subscripts, Tensor a, Tensor b, Scalar alpha, bool conjugate_a, bool conjugate_b, str "
    "precision, ScalarType? out_dtype) -> Tensor",
    _run_einsum,
    _fake_einsum,
    partial(recorded, EinsumGradient),
    _batched_einsum,
    cast=(1, 2),
)


def einsum(
    subscripts: str,
    a: torch.Tensor,
    b: torch.Tensor,
    *,
    alpha: complex = 1.0,
    bias: torch.Tensor | None = None,
    activation: str | None = None,
    residual: torch.Tensor | None = None,
    conjugate_a: bool = False,
    conjugate_b: bool = False,
    precision: str = "exact",
    out_dtype: torch.dtype | None = None,
) -> torch.Tensor:
    """``activation(alpha * contraction(op(a), op(b)) + bias) + residual``, with gradients.

    One kernel contracts, and PyTorch adds the terms.  The gradients are contractions of the result's
    gradient and the other operand, and have gradients themselves.

    Args:
        subscripts: as in `tilewright.einsum`, e.g. ``"bsk,khe->bhse"``.
        a: tensor of any strides, real or complex.
        b: tensor of the same dtype.
        alpha: a number; complex for complex tensors only.
        bias: tensor that is broadcast to the result.
        activation: as in `matmul`.
        residual: tensor that is broadcast to the result.
        conjugate_a: whether to contract the conjugate of ``a``.
        conjugate_b: the same for ``b``.
        precision: as in `tilewright.einsum`.
        out_dtype: dtype of the result; default: as in `tilewright.matmul`.

    Returns:
        A new tensor, contiguous in the order of the subscripts.

    Raises:
        LaunchError: subscripts, shapes or devices do not fit.
        DTypeError: an unsupported dtype or mixture.

    Example:
        >>> x = torch.arange(6.0).reshape(2, 3).requires_grad_()
        >>> einsum("ij,j->i", x, torch.tensor([1.0, 0.0, 2.0])).sum().backward()
        >>> x.grad.tolist()
        [[1.0, 0.0, 2.0], [1.0, 0.0, 2.0]]
    """
    sums = EINSUM(subscripts, a, b, alpha, conjugate_a, conjugate_b, precision, out_dtype)
    if bias is not None:
        sums = (sums + bias).to(sums.dtype)
    if activation is None and residual is None:
        return sums
    return finished(sums, activation, None, None, residual)
