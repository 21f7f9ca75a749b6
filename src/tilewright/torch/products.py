"""`matmul` and `linear` for PyTorch, with their gradients.

Gradients are products again, computed by the same operations, so that they have gradients themselves.  For
the gradients a product saves its operands, and its result if the activation's slope follows from it; PyTorch
saves the same tensors.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache, partial
from typing import Any

import torch
from torch.compiler import is_compiling

from tilewright.dtypes import DType, f32, f64, u32, u64
from tilewright.errors import DTypeError, LaunchError
from tilewright.lang.dataflow.indexing import positions
from tilewright.lang.dataflow.loops import tiles
from tilewright.lang.functions import derivative as slope
from tilewright.lang.functions import dropout as drop
from tilewright.ops import matmul as of_matmul
from tilewright.ops.ending import ACTIVATIONS as OF_KERNELS
from tilewright.ops.wanted import check_derivative, dropout_of
from tilewright.runtime.kernel import Bound, kernel
from tilewright.torch.contractions import as_matrices, complex_matmul, summed_product
from tilewright.torch.registry import (
    Operation,
    apply_of,
    direct,
    is_new,
    recorded,
    with_replay,
)
from tilewright.torch.terms import (
    ACTIVATIONS,
    FROM_RESULT,
    FROM_SUMS,
    activated,
    batch_first,
    drawn_seed,
    finished,
    is_last,
    own_dtype,
    present,
    product_shape,
    result_like,
)

# ---------------------------------------------------------------- gradients


@kernel(X="M N", S="N")
def _sums(X: Any, S: Any, *, number: DType) -> None:
    for n in tiles(S):
        S[n] = X[:, n].to(number).sum(axis=0)


_SUMS = {is_wide: _sums.bind(number=f64 if is_wide else f32) for is_wide in (False, True)}
"""The kernel `_sums` for sums in f64 (True) and in f32 (False)."""


def _run_sums(rows: torch.Tensor) -> torch.Tensor:
    made = is_new(rows.new_empty(rows.shape[1]))
    _SUMS[rows.dtype == torch.float64](rows, made)
    return made


COLUMN_SUMS = Operation(
    "column_sums(Tensor rows) -> Tensor",
    _run_sums,
    lambda rows: rows.new_empty(rows.shape[1]),
    lambda rows: rows.sum(0),
    lambda size, dims, rows: rows.movedim(dims[0], 0).sum(1),
)


def column_sums(rows: torch.Tensor) -> torch.Tensor:
    """Return the sum of each column, over all other dimensions, in one kernel.

    If a gradient is wanted, or under `torch.func.vmap`, PyTorch computes it.

    Args:
        rows: tensor of a float dtype. Numbers of 16 bits are added in f32.

    Example:
        >>> column_sums(torch.ones(3, 2)).tolist()
        [3.0, 3.0]
    """
    made: torch.Tensor = COLUMN_SUMS(_as_matrix(rows))
    return made


def _as_matrix(x: torch.Tensor) -> torch.Tensor:
    """Return a tensor (..., N) as a matrix of rows; it may be empty."""
    return x if x.dim() == 2 else x.flatten(0, -2) if x.dim() > 2 else x[None]


def bias_gradient(dz: torch.Tensor, kind: torch.dtype) -> torch.Tensor:
    """Return the gradient of a bias: sums of columns, rounded once to the dtype of the bias.

    Args:
        dz: the gradient of the sum that the bias was added to.
        kind: the dtype of the bias.

    Example:
        >>> bias_gradient(torch.ones(70000, 1, dtype=torch.float16), torch.float32).tolist()
        [70000.0]
    """
    return column_sums(dz.to(kind) if kind.itemsize > dz.dtype.itemsize else dz).to(kind)


@kernel(D="M N", S="M N", Y="M N", of_S="M N", of_Y="M N")
def _gates(D: Any, S: Any, Y: Any, of_S: Any, of_Y: Any, *, activation: str, number: DType) -> None:
    for m, n in tiles(of_S):
        dy, sums = D[m, n].to(number), S[m, n].to(number)
        of_S[m, n] = dy * Y[m, n].to(number) * slope(activation, sums)
        of_Y[m, n] = dy * OF_KERNELS[activation](sums)


def _run_gates(dy: Any, sums: Any, multiply: Any, activation: str) -> Any:
    made = is_new(torch.empty_like(sums)), is_new(torch.empty_like(multiply))
    number = f64 if torch.float64 in (dy.dtype, multiply.dtype) else f32
    _gates.bind(activation=activation, number=number)(*map(_as_matrix, (dy, sums, multiply, *made)))
    return made


GATES = Operation(
    "gate_gradients(Tensor dy, Tensor sums, Tensor multiply, str activation) -> (Tensor, Tensor)",
    _run_gates,
    lambda dy, sums, multiply, activation: (torch.empty_like(sums), torch.empty_like(multiply)),
    refusal="the kernel of a gate's gradients has no gradients; nearest legal choice: matmul(multiply=), and "
    "torch.autograd.grad(create_graph=True)",
)
"""Gradients of ``activation(sums) * multiply`` in one kernel; equal shapes, all but ``dy`` contiguous."""


@lru_cache(maxsize=2)
def _dropping(number: DType) -> Bound:
    """The kernel that drops elements of a matrix, in f64 or in f32."""

    @kernel(X="M N", Y="M N", seed=u64, offset=u64, threshold=u32, kept=number)
    def dropped(X: Any, Y: Any, seed: Any, offset: Any, threshold: Any, kept: Any) -> None:
        for m, n in tiles(Y):
            index = positions(m)[:, None].to(u64) * Y.shape[1] + positions(n).to(u64)
            Y[m, n] = drop(X[m, n].to(number), index, threshold, kept, seed, offset)

    return dropped.bind()


def _run_dropout(x: torch.Tensor, probability: float, seed: int, offset: int) -> torch.Tensor:
    made = is_new(torch.empty(x.shape, dtype=x.dtype, device=x.device))
    wanted = dropout_of("dropout", probability, seed, offset)
    run = _dropping(f64 if x.dtype == torch.float64 else f32)
    run(_as_matrix(x), _as_matrix(made), *wanted.numbers)
    return made


class DropoutGradient(torch.autograd.Function):
    """Sets elements to 0, chosen by their index; the gradient chooses them again, and saves no mask."""

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: torch.Tensor) -> None:
        """Save the probability, the seed and the offset."""
        _, *ctx.words = inputs

    @staticmethod
    def backward(ctx: Any, dy: torch.Tensor) -> Any:
        """Drop the same elements."""
        return DROPOUT(dy, *ctx.words), None, None, None


DROPOUT: Operation = Operation(
    "dropout(Tensor x, float probability, SymInt seed, SymInt offset) -> Tensor",
    _run_dropout,
    lambda x, *words: torch.empty(x.shape, dtype=x.dtype, device=x.device),
    DropoutGradient,
)


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
    if dy.dim() == a.dim() == 2 or dy.shape[:-2] == a.shape[:-2]:
        return matmul(dy, b.mT, **options)
    return summed_product(dy, b, a, "mn,kn->mk", **options)


def gradient_of_b(dy: torch.Tensor, a: torch.Tensor, b: torch.Tensor, **options: Any) -> torch.Tensor:
    """Return ``dB = Aᵀ dY``, summed over the batches that repeat ``b``.

    If ``b`` is contiguous along K, as the weight of a layer is, so is its gradient: PyTorch copies gradients
    that have other strides than their parameters.

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
    rank = b.dim()
    if rank == 2 and a.dim() == dy.dim() > 2 and a.shape[:-2] == dy.shape[:-2]:
        a, dy = a.flatten(0, -2), dy.flatten(0, -2)
    if dy.dim() != rank or (rank > 2 and dy.shape[:-2] != b.shape[:-2]):
        return summed_product(a, dy, b, "mk,mn->kn", **options)
    if b.stride(-2) == 1 < b.stride(-1):
        return matmul(dy.mT, a, **options).mT
    return matmul(a.mT, dy, **options)


def _gradients(
    dz: Any, wide: Any, a: Any, b: Any, of_a: Any, of_b: Any, of_bias: Any, alpha: float, precision: str
) -> tuple[torch.Tensor | None, torch.Tensor | None, torch.Tensor | None]:
    """Return the gradients of the operands and of the bias of ``alpha * (a @ b) + bias``.

    Args:
        dz: the gradient of the sums, in the dtype of the operands.
        wide: it before it was rounded to that dtype, or None.
        a: the first operand; None if ``b`` has no gradient.
        b: the second operand; None if ``a`` has no gradient.
        of_a: the shape of ``a``.
        of_b: the shape of ``b``.
        of_bias: the dtype of the bias; None: it has no gradient.
        alpha: a number.
        precision: as in `matmul`.
    """
    # Only the shape of an operand that is not kept is needed.
    one = a if a is not None else dz.new_empty(()).expand(of_a)
    other = b if b is not None else dz.new_empty(()).expand(of_b)
    factor = dz
    if len(of_a) < 2 or len(of_b) < 2:
        one, other, factor = as_matrices(one, other, factor)
    options: dict[str, Any] = {} if precision == "exact" else {"precision": precision}
    if alpha != 1:
        options["alpha"] = alpha
    d_a = None if b is None else gradient_of_a(factor, one, other, **options)
    d_a = d_a if d_a is None or len(of_a) > 1 else d_a.reshape(of_a)
    d_b = None if a is None else gradient_of_b(factor, one, other, **options)
    d_b = d_b if d_b is None or len(of_b) > 1 else d_b.reshape(of_b)
    return d_a, d_b, None if of_bias is None else bias_gradient(dz if wide is None else wide, of_bias)


_gradients_again = with_replay(_gradients, range(4), range(4, 9), (7,))


# ---------------------------------------------------------------- matmul


class MatmulGradient(torch.autograd.Function):
    """``y = activation(z) * multiply + residual``, where ``z = alpha * (a @ b) + beta * c + bias``.

    With ``stores`` the kernel stores ``z`` too, from which the slope of any activation follows.  Without it,
    the activation is one of `FROM_RESULT`, and nothing follows it.
    """

    @staticmethod
    def forward(
        observed: bool,
        stores: bool,
        a: Any,
        b: Any,
        c: Any,
        bias: Any,
        multiply: Any,
        residual: Any,
        alpha: float,
        beta: float | None,
        activation: str | None,
        precision: str,
        out_dtype: torch.dtype | None,
    ) -> Any:
        """Compute ``y``, and ``z``, in one kernel, through the dispatcher if something observes the call."""
        words = (alpha, beta, activation, None, precision, out_dtype)
        operation = MATMUL_AND_SUMS if stores else MATMUL
        run = operation.inside if observed else operation.run
        return run(a, b, c, bias, multiply, residual, *words)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        """Keep the operands, and the numbers that determine the activation's slope."""
        _, ctx.stores, a, b, c, bias, multiply, residual, alpha, beta, activation, precision, _ = inputs
        _, _, need_a, need_b, need_c, need_bias, need_multiply, need_residual, *_ = ctx.needs_input_grad
        ctx.words = alpha, beta, activation, precision
        ctx.kinds = a.dtype, a.shape, b.shape, bias.dtype if need_bias else None
        ctx.added = (
            (c.shape, c.dtype) if need_c else None,
            (residual.shape, residual.dtype) if need_residual else None,
        )
        ctx.set_materialize_grads(False)
        ctx.factor = (multiply.shape, multiply.dtype) if need_multiply else None
        kept = output[1] if ctx.stores else output if activation is not None else None
        ctx.save_for_backward(a if need_b else None, b if need_a else None, kept, multiply)

    @staticmethod
    def backward(ctx: Any, dy: torch.Tensor | None, d_sums: torch.Tensor | None = None) -> Any:
        """Return the gradients of the arrays, by products."""
        (a, b, kept, multiply), (alpha, beta, activation, precision) = ctx.saved_tensors, ctx.words
        (kind, of_a, of_b, of_bias), (c, residual) = ctx.kinds, ctx.added
        d_a = d_b = d_c = d_bias = d_multiply = d_residual = None
        dz = d_sums
        if dy is not None:
            after = dy
            in_one = multiply is not None and ctx.factor is not None and activation is not None
            in_one = in_one and not torch.is_grad_enabled() and multiply.shape == kept.shape and dy.dim() > 0
            if in_one and multiply.is_contiguous():
                after, d_multiply = GATES(dy, kept, multiply, activation)
                activation = None
            elif multiply is not None:
                if ctx.factor is not None:
                    value = kept if activation is None else activated(activation, kept)
                    d_multiply = (dy * value).sum_to_size(ctx.factor[0]).to(ctx.factor[1])
                after = (dy * multiply).to(dy.dtype)
            if activation is not None:
                after = (FROM_SUMS if ctx.stores else FROM_RESULT)[activation](after, kept)
            dz = after if d_sums is None else after + d_sums
            if residual is not None:
                d_residual = dy.sum_to_size(residual[0]).to(residual[1])
        if dz is None:
            return (None,) * len(ctx.needs_input_grad)
        if c is not None:
            d_c = (dz if beta is None else beta * dz).sum_to_size(c[0]).to(c[1])
        factor = dz if dz.dtype == kind or (a is None and b is None) else dz.to(kind)
        wide = None if factor is dz else dz
        d_a, d_b, d_bias = _gradients_again(factor, wide, a, b, of_a, of_b, of_bias, alpha, precision)
        return None, None, d_a, d_b, d_c, d_bias, d_multiply, d_residual, *(None,) * 5


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
    sums: Any = None,
) -> Any:
    terms = present(c=c, bias=bias, multiply=multiply, residual=residual, sums=sums)
    words = present(beta=beta, activation=activation, derivative=derivative, out_dtype=own_dtype(out_dtype))
    return of_matmul.matmul(a, b, alpha=alpha, precision=precision, **terms, **words)


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
    precision: str,
    out_dtype: torch.dtype | None,
    observed: bool = True,
) -> Any:
    words = (precision, out_dtype)
    apply = partial(recorded, MatmulGradient, True) if observed else partial(_apply_directly, False)
    check_derivative("matmul", derivative, multiplies=multiply is not None)
    if is_last(activation, multiply, residual):
        return apply(False, a, b, c, bias, None, residual, alpha, beta, activation, *words)
    if derivative is not None or not a.is_floating_point():
        sums = apply(False, a, b, c, bias, None, None, alpha, beta, None, *words)
        return finished(sums, activation, multiply, derivative, residual)
    if activation is not None and activation not in ACTIVATIONS:
        activated(activation, a)
    return apply(True, a, b, c, bias, multiply, residual, alpha, beta, activation, *words)[0]


_apply_directly = apply_of(MatmulGradient)


def _matmul_recorded(
    a: Any,
    b: Any,
    *,
    c: Any = None,
    alpha: float = 1.0,
    beta: float | None = None,
    bias: Any = None,
    activation: str | None = None,
    multiply: Any = None,
    derivative: str | None = None,
    residual: Any = None,
    dropout: float = 0.0,
    seed: int | None = None,
    offset: int = 0,
    precision: str = "exact",
    out_dtype: torch.dtype | None = None,
) -> Any:
    """`matmul` of plain tensors with gradients, if nothing observes the call."""
    if a.is_complex() or dropout:
        raise LaunchError("complex tensors, and dropout, have other operations")
    arrays = (a, b, c, bias, multiply, residual)
    return _matmul_with_gradient(
        *arrays, alpha, beta, activation, derivative, precision, out_dtype, observed=False
    )


def _batched_matmul(product: Operation, size: int, dims: Sequence[Any], a: Any, b: Any, *args: Any) -> Any:
    *terms, alpha, beta, activation, derivative, precision, kind = args
    words = (alpha, beta, activation, derivative, precision, kind)
    of_a, of_b, *others = dims
    rank_a, rank_b = a.dim() - (of_a is not None), b.dim() - (of_b is not None)
    if others[1] is not None or (of_a is None and of_b is None and rank_a > 1):
        return None  # a bias for each call, or one product to which each call adds its terms
    if rank_a == 1 and rank_b == 2 and of_b is None:  # each vector is a row of one matrix
        rank = 1
        given = [a.movedim(of_a, 0)] if of_a is not None else [a.expand(size, -1)]
        given.append(b)
    elif min(rank_a, rank_b) > 1:
        rank = max(rank_a, rank_b)
        given = [batch_first(a, of_a, rank), batch_first(b, of_b, rank)]
    elif product is MATMUL and all(one is None for one in terms):
        one = a if of_a is None else a.movedim(of_a, 0)
        other = b if of_b is None else b.movedim(of_b, 0)
        one, other = one.unsqueeze(-2) if rank_a == 1 else one, other[..., None] if rank_b == 1 else other
        rank = max(rank_a, rank_b, 2)
        given = [batch_first(x, None if d is None else 0, rank) for x, d in ((one, of_a), (other, of_b))]
        made = product(*given, *terms, *words)
        made = made.squeeze(-1) if rank_b == 1 else made
        return made if rank_a > 1 else made.squeeze(-1 if rank_b == 1 else -2)
    else:
        return None
    pairs = zip(terms, others, strict=False)
    return product(
        *given, *(one if one is None else batch_first(one, dim, rank) for one, dim in pairs), *words
    )


def _like_product(a: Any, b: Any, c: Any, bias: Any, multiply: Any, residual: Any, *words: Any) -> Any:
    terms = {"c": c, "bias": bias, "multiply": multiply, "residual": residual}
    return a.new_empty(product_shape(a, b), dtype=result_like("matmul", words[-1], a=a, b=b, **terms))


ARGUMENTS = (
    "(Tensor a, Tensor b, Tensor? c, Tensor? bias, Tensor? multiply, Tensor? residual, float alpha, "
    "float? beta, str? activation, str? derivative, str precision, ScalarType? out_dtype)"
)

MATMUL: Operation = Operation(
    f"matmul{ARGUMENTS} -> Tensor",
    _run_matmul,
    _like_product,
    _matmul_with_gradient,
    lambda *args: _batched_matmul(MATMUL, *args),
    cast=range(6),
)


def _run_matmul_and_sums(*args: Any) -> Any:
    sums = is_new(_like_product(*args))
    return partial(_run_matmul, sums=sums)(*args), sums


MATMUL_AND_SUMS: Operation = Operation(
    f"matmul_and_sums{ARGUMENTS} -> (Tensor, Tensor)",
    _run_matmul_and_sums,
    lambda *args: (_like_product(*args), _like_product(*args)),
    lambda *args: recorded(MatmulGradient, True, True, *args[:9], *args[10:]),
    lambda *args: _batched_matmul(MATMUL_AND_SUMS, *args),
    cast=range(6),
)
"""`MATMUL` that also returns the argument of its activation; it has no ``derivative``."""


def _matmul_by_kernels(
    a: Any, b: Any, *, dropout: float = 0.0, seed: Any = 0, offset: int = 0, **words: Any
) -> Any:
    if dropout:
        raise LaunchError("dropout has an operation")
    return of_matmul.matmul(a, b, **words)


@direct(_matmul_by_kernels, _matmul_recorded)
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
    dropout: float = 0.0,
    seed: int | None = None,
    offset: int = 0,
    precision: str = "exact",
    out_dtype: torch.dtype | None = None,
) -> torch.Tensor:
    """``dropout(activation(alpha * (a @ b) + beta * c + bias) * multiply) + residual``, with gradients.

    One kernel computes it, as `tilewright.matmul` does.  If a gradient is wanted, and the slope of the
    activation does not follow from the result, the kernel stores the activation's argument too. With
    ``derivative`` PyTorch then computes the terms after the sums.

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
        derivative: the name of an activation; the factor is then ``activation'(multiply)``.
        residual: tensor that is broadcast to the result.
        dropout: the probability that an element is set to 0, as in `tilewright.matmul`. A second kernel drops
            elements; its gradient computes the mask again.
        seed: the key of the random numbers; default: a number that PyTorch's generator of the CPU draws.
            Inside of `torch.compile` give a seed.
        offset: an integer; use another one for each layer or step of one seed.
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
    if isinstance(a, torch.Tensor) and a.is_complex():
        if any(one is not None for one in (bias, activation, multiply, residual)) or dropout:
            raise LaunchError(
                "tilewright.torch.matmul of complex tensors has no bias, activation, multiply, dropout or "
                "residual",
                "c=, or an operation on the result",
            )
        return complex_matmul(a, b, c, alpha=alpha, beta=beta, precision=precision, out_dtype=out_dtype)
    words = (alpha, beta, activation, derivative, precision, out_dtype)
    if not dropout:
        made: torch.Tensor = MATMUL(a, b, c, bias, multiply, residual, *words)
        return made
    if seed is None:
        seed = drawn_seed("matmul", 2**63 - 1)
    if not is_compiling():  # the kernel checks them when the graph runs
        dropout_of("tilewright.torch.matmul", dropout, seed, offset)
    value = MATMUL(a, b, c, bias, multiply, None, *words)
    if not value.is_floating_point():
        raise DTypeError(f"tilewright.torch.matmul: dropout of {value.dtype}", "operands of a float dtype")
    if residual is not None:
        pairs = zip(reversed(residual.shape), reversed(value.shape), strict=False)
        if residual.dim() > value.dim() or any(extent not in (1, whole) for extent, whole in pairs):
            raise LaunchError(
                f"residual has shape {tuple(residual.shape)}, which does not broadcast to the shape of "
                f"a @ b, {tuple(value.shape)}"
            )
    made = (
        DROPOUT(value, dropout, seed, offset)
        if value.dim()
        else DROPOUT(value[None], dropout, seed, offset)[0]
    )
    return made if residual is None else (made + residual).to(made.dtype)


def tilewright_mm(a: torch.Tensor, b: torch.Tensor, *, out: torch.Tensor) -> torch.Tensor:
    """``out = a @ b`` for matrices, as Inductor calls it; dtypes that `matmul` lacks are left to PyTorch."""
    try:
        of_matmul.matmul(a, b, out)
    except DTypeError:
        torch.mm(a, b, out=out)
    return out


def inductor_options() -> dict[str, Any]:
    """Return options of `torch.compile` with which Inductor tries `matmul` for a model's own products.

    For each product of two matrices without added terms, Inductor times ``tilewright_mm`` and its own
    choices, also in compiled gradients, and calls the fastest.  It does not ask other libraries for products
    with a bias (``addmm``) or in batches (``bmm``), and fuses nothing into their calls.

    Each process that compiles with these options must call this function: it registers the name that
    compiled graphs, cached ones too, call.

    Returns:
        ``{"max_autotune": True, "external_matmul": [tilewright_mm]}``.

    Example:
        >>> layer = torch.compile(lambda x, w: torch.relu(x @ w), options=inductor_options())
    """
    from torch._inductor.kernel.mm import lazy_register_extern_choice

    lazy_register_extern_choice(tilewright_mm)
    return {"max_autotune": True, "external_matmul": [tilewright_mm]}


def _linear_by(product: Callable[..., Any]) -> Callable[..., Any]:
    """Return `linear` computed by a function that multiplies matrices."""

    def linear(x: Any, weight: Any, bias: Any = None, **words: Any) -> Any:
        for name, one in (("weight", weight), ("x", x)):
            if not isinstance(one, torch.Tensor):
                raise LaunchError(
                    f"tilewright.torch.linear: {name} is a {type(one).__name__}", f"torch.as_tensor({name})"
                )
        turned = weight if weight.dim() < 2 else weight.mT
        if bias is None:
            return product(x, turned, **words)
        if weight.dim() < 2 or x.is_complex():  # no columns, or a product without bias
            return product(x, turned, c=bias, **words)
        return product(x, turned, bias=bias, **words)

    return linear


@direct(_linear_by(_matmul_by_kernels), _linear_by(_matmul_recorded))
def linear(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None = None,
    *,
    activation: str | None = None,
    residual: torch.Tensor | None = None,
    dropout: float = 0.0,
    seed: int | None = None,
    offset: int = 0,
    precision: str = "exact",
) -> torch.Tensor:
    """``dropout(activation(x @ weightᵀ + bias)) + residual``, with gradients.

    Without ``activation`` and ``residual`` it is `torch.nn.functional.linear`.

    Args:
        x: tensor (..., K).
        weight: tensor (N, K), or a vector (K,).
        bias: tensor (N,).
        activation: as in `matmul`.
        residual: tensor that is broadcast to the result.
        dropout: as in `matmul`.
        seed: as in `matmul`.
        offset: as in `matmul`.
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
    words: dict[str, Any] = {"activation": activation, "residual": residual, "precision": precision}
    return _LINEAR(x, weight, bias, **words, dropout=dropout, seed=seed, offset=offset)


_LINEAR = _linear_by(matmul)
