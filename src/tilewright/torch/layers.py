"""Operations of layers for PyTorch: chains, gates, groups, reduced and scaled products."""

from __future__ import annotations

from typing import Any

import torch

from tilewright.errors import LaunchError
from tilewright.ops import gated_matmul as of_gates
from tilewright.ops import gemm_chain as of_chain
from tilewright.ops import grouped as of_groups
from tilewright.ops import reduced_matmul as of_reduced
from tilewright.ops import scaled as of_scaled
from tilewright.runtime.packed_arrays import packed as packed_array
from tilewright.torch.products import (
    MATMUL_AND_SUMS,
    bias_gradient,
    column_sums,
    gradient_of_a,
    gradient_of_b,
    matmul,
)
from tilewright.torch.registry import NARROWED, Operation, direct, recorded, wants_gradient, with_replay
from tilewright.torch.terms import (
    FROM_SUMS,
    TABLES,
    activated,
    finished,
    numbers_of_codes,
    own_dtype,
    present,
    product_shape,
    result_like,
    scaled_like,
)

# ---------------------------------------------------------------- two products in a row


class ChainGradient(torch.autograd.Function):
    """``y = activation(a @ b + bias_b) @ c + bias_c``; gradients compute the first product again."""

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: torch.Tensor) -> None:
        """Keep the operands."""
        a, b, c, bias_b, _, *ctx.words = inputs
        ctx.save_for_backward(a, b, c, bias_b)

    @staticmethod
    def backward(ctx: Any, dy: torch.Tensor, *_: Any) -> Any:
        """Return the gradients. All are products; one also multiplies by the activation's derivative."""
        (a, b, c, bias_b, *kept), (activation, precision) = ctx.saved_tensors, ctx.words
        needs, words = ctx.needs_input_grad, {"precision": precision}
        if kept and not torch.is_grad_enabled():
            sums, hidden = kept
        else:
            sums = matmul(a, b, bias=bias_b, **words)
            hidden = sums if activation is None or not needs[2] else activated(activation, sums)
        return *_chain_again(dy, a, b, c, sums, hidden, needs, activation, precision), None, None


def _gradients_of_chain(
    dy: Any,
    a: Any,
    b: Any,
    c: Any,
    sums: Any,
    hidden: Any,
    needs: tuple[bool, ...],
    activation: str | None,
    precision: str,
) -> tuple[torch.Tensor | None, ...]:
    """Return the gradients of two products in a row, whose activation takes ``sums`` to ``hidden``."""
    words: dict[str, Any] = {"precision": precision}
    d_sums = d_a = d_b = d_c = None
    if needs[2]:
        d_c = gradient_of_b(dy, hidden, c, **words)
    if needs[0] or needs[1] or needs[3]:
        late = {} if activation is None else {"multiply": sums, "derivative": activation}
        d_sums = matmul(dy, c.mT, **late, **words)
        d_a = gradient_of_a(d_sums, a, b, **words) if needs[0] else None
        d_b = gradient_of_b(d_sums, a, b, **words) if needs[1] else None
    d_bias_b = column_sums(d_sums) if needs[3] else None
    return d_a, d_b, d_c, d_bias_b, column_sums(dy) if needs[4] else None


_chain_again = with_replay(_gradients_of_chain, range(6), range(6, 9))


GEMM_CHAIN = Operation(
    "gemm_chain(Tensor a, Tensor b, Tensor c, Tensor? bias_b, Tensor? bias_c, str? activation, str "
    "precision) -> Tensor",
    lambda a, b, c, bias_b, bias_c, activation, precision: of_chain.gemm_chain(
        a, b, c, activation=activation, precision=precision, **present(bias_b=bias_b, bias_c=bias_c)
    ),
    lambda a, b, c, *words: a.new_empty((*product_shape(a, b)[:-1], c.shape[-1])),
    ChainGradient,
    cast=range(5),
)


@direct(of_chain.gemm_chain)
def gemm_chain(
    a: torch.Tensor,
    b: torch.Tensor,
    c: torch.Tensor,
    *,
    bias_b: torch.Tensor | None = None,
    bias_c: torch.Tensor | None = None,
    activation: str | None = None,
    precision: str = "exact",
) -> torch.Tensor:
    """``activation(a @ b + bias_b) @ c + bias_c``, with gradients; nothing but the operands is kept for them.

    Args:
        a: tensor (M, K), or with one or two leading dimensions.
        b: tensor (K, N), or with the leading dimensions of ``a``.
        c: tensor (N, P), likewise.
        bias_b: tensor (N,).
        bias_c: tensor (P,).
        activation: as in `matmul`.
        precision: as in `matmul`.

    Returns:
        A new tensor (..., M, P).

    Raises:
        LaunchError: shapes or devices do not fit.
        DTypeError: an unsupported dtype or mixture.

    Example:
        >>> a = torch.tensor([[1.0, -2.0]], requires_grad=True)
        >>> gemm_chain(a, torch.eye(2), torch.ones(2, 1), activation="relu").backward()
        >>> a.grad.tolist()
        [[1.0, 0.0]]
    """
    return GEMM_CHAIN(a, b, c, bias_b, bias_c, activation, precision)


class LayersGradient(ChainGradient):
    """Two products around an activation; saves the first product's sums, which `ChainGradient` then reads."""

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[torch.Tensor, ...]) -> None:
        """Keep the operands of both products, and the argument of the activation."""
        a, b, c, bias_b, _, *ctx.words = inputs
        ctx.mark_non_differentiable(*output[1:])
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(a, b, c, bias_b, *output[1:])


def _run_layers(
    a: Any, b: Any, c: Any, bias_b: Any, bias_c: Any, activation: str, precision: str
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    words = (1.0, None, activation, None, precision, None)
    hidden, sums = MATMUL_AND_SUMS.run(a, b, None, bias_b, None, None, *words)
    return matmul(hidden, c, bias=bias_c, precision=precision), sums, hidden


TWO_LAYERS = Operation(
    "two_layers(Tensor a, Tensor b, Tensor c, Tensor? bias_b, Tensor? bias_c, str activation, str precision) "
    "-> (Tensor, Tensor, Tensor)",
    _run_layers,
    lambda a, b, c, *words: tuple(
        a.new_empty((*product_shape(a, b)[:-1], n)) for n in (c.shape[-1], b.shape[-1], b.shape[-1])
    ),
    LayersGradient,
    cast=range(5),
)


def two_layers(
    a: torch.Tensor,
    b: torch.Tensor,
    c: torch.Tensor,
    bias_b: torch.Tensor | None,
    bias_c: torch.Tensor | None,
    activation: str,
    precision: str = "exact",
) -> torch.Tensor:
    """``activation(a @ b + bias_b) @ c + bias_c`` by two kernels, with gradients.

    Both results of the first product are kept for them, so that nothing is computed again.  The kernel of the
    second product's gradient multiplies by the activation's derivative.

    Args:
        a: tensor (..., K).
        b: tensor (K, N).
        c: tensor (N, P).
        bias_b: tensor (N,), or None.
        bias_c: tensor (P,), or None.
        activation: as in `matmul`.
        precision: as in `matmul`.

    Example:
        >>> a = torch.tensor([[1.0, -2.0]], requires_grad=True)
        >>> two_layers(a, torch.eye(2), torch.ones(2, 1), None, None, "relu").backward()
        >>> a.grad.tolist()
        [[1.0, 0.0]]
    """
    if wants_gradient((a, b, c, bias_b, bias_c)):
        if a.dim() == 1:
            return two_layers(a[None], b, c, bias_b, bias_c, activation, precision)[0]
        made: torch.Tensor = TWO_LAYERS(a, b, c, bias_b, bias_c, activation, precision)[0]
        return made
    hidden = matmul(a, b, bias=bias_b, activation=activation, precision=precision)
    return matmul(hidden, c, bias=bias_c, precision=precision)


GATED_MATMUL = Operation(
    "gated_matmul(Tensor a, Tensor b, Tensor c, Tensor? bias_b, Tensor? bias_c, str activation, str "
    "precision) -> Tensor",
    lambda a, b, c, bias_b, bias_c, activation, precision: of_gates.gated_matmul(
        a, b, c, activation=activation, precision=precision, **present(bias_b=bias_b, bias_c=bias_c)
    ),
    lambda a, b, *rest: a.new_empty(
        product_shape(a, b),
        dtype=a.dtype if a.dtype == torch.float64 else scaled_like("gated_matmul", None, a, b),
    ),
    lambda a, b, c, bias_b, bias_c, activation, precision: matmul(
        *(a, b),
        bias=bias_b,
        activation=activation,
        multiply=matmul(a, c, bias=bias_c, precision=precision),
        precision=precision,
    ),
    cast=range(5),
)


@direct(of_gates.gated_matmul)
def gated_matmul(
    a: torch.Tensor,
    b: torch.Tensor,
    c: torch.Tensor,
    *,
    bias_b: torch.Tensor | None = None,
    bias_c: torch.Tensor | None = None,
    activation: str = "silu",
    precision: str = "exact",
) -> torch.Tensor:
    """``activation(a @ b + bias_b) * (a @ c + bias_c)``, with gradients.

    One kernel computes it.  If a gradient is wanted, two do, and one computes the gradients of both gates.

    Args:
        a: tensor (..., M, K).
        b: tensor (..., K, N).
        c: tensor of the shape of ``b``.
        bias_b: tensor (N,).
        bias_c: tensor (N,).
        activation: as in `matmul`.
        precision: as in `tilewright.gated_matmul`; gradients have that of `matmul`.

    Returns:
        A new tensor (..., M, N).

    Raises:
        LaunchError: shapes or devices do not fit.
        DTypeError: an unsupported dtype or mixture.

    Example:
        >>> b, c = torch.tensor([[2.0]]), torch.tensor([[3.0]])
        >>> gated_matmul(torch.ones(1, 1), b, c, activation="relu").item()
        6.0
    """
    return GATED_MATMUL(a, b, c, bias_b, bias_c, activation, precision)


# ---------------------------------------------------------------- groups of rows


class GroupedGradient(torch.autograd.Function):
    """``y[rows] = a[rows] @ b[g] + bias[g]`` for the rows of each group."""

    @staticmethod
    def forward(a: Any, b: Any, ends: Any, bias: Any) -> Any:
        """Compute ``y`` in one kernel."""
        return GROUPED_MATMUL.inside(a, b, ends, bias, None)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: torch.Tensor) -> None:
        """Keep the operands."""
        a, b, ends, bias = inputs
        ctx.has_bias = bias is not None
        ctx.save_for_backward(a, b, ends)

    @staticmethod
    def backward(ctx: Any, dy: torch.Tensor) -> Any:
        """Return the gradients: a product for rows in groups, and one with groups along K."""
        a, b, ends = ctx.saved_tensors
        needs, d_a, d_b, d_bias = ctx.needs_input_grad, None, None, None
        if needs[0]:
            d_a = _rows_of_groups(dy, b.mT, ends)
        if needs[1]:
            d_b = GROUPED_GRADIENT(a, dy, ends)
        if needs[3] and ctx.has_bias:
            d_bias = GROUPED_GRADIENT(dy.new_ones(a.shape[0], 1), dy, ends)[:, 0]
        return d_a, d_b, None, d_bias


def _rows_of_groups(a: torch.Tensor, b: torch.Tensor, ends: torch.Tensor) -> torch.Tensor:
    """`grouped_matmul`, with zeros in the rows after the last end."""
    last = ends[-1] if ends.shape[0] else 0
    outside = torch.arange(a.shape[0], device=a.device) >= last
    return grouped_matmul(a, b, ends).masked_fill(outside[:, None], 0)


class GroupSumsGradient(torch.autograd.Function):
    """``y[g] = a[rows]ᵀ @ b[rows]`` for the rows of each group: groups along K."""

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: torch.Tensor) -> None:
        """Keep the operands."""
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx: Any, dy: torch.Tensor) -> Any:
        """Return the gradients: products for rows in groups."""
        a, b, ends = ctx.saved_tensors
        d_a = _rows_of_groups(b, dy.mT, ends) if ctx.needs_input_grad[0] else None
        return d_a, _rows_of_groups(a, dy, ends) if ctx.needs_input_grad[1] else None, None


GROUPED_MATMUL = Operation(
    "grouped_matmul(Tensor a, Tensor b, Tensor ends, Tensor? bias, str? activation) -> Tensor",
    lambda a, b, ends, bias, activation: of_groups.grouped_matmul(
        a, b, ends, activation=activation, **present(bias=bias)
    ),
    lambda a, b, ends, *words: a.new_empty(
        (a.shape[0], b.shape[-1]), dtype=result_like("matmul", None, a=a, b=b)
    ),
    lambda *arrays: finished(recorded(GroupedGradient, *arrays[:4]), arrays[4], None, None, None),
    cast=(0, 1, 3),
)


GROUPED_GRADIENT = Operation(
    "grouped_gradient(Tensor a, Tensor dy, Tensor ends) -> Tensor",
    lambda a, dy, ends: of_groups.grouped_matmul(a.mT, dy, ends),
    lambda a, dy, ends: a.new_empty((ends.shape[0], a.shape[1], dy.shape[1])),
    GroupSumsGradient,
)


@direct(of_groups.grouped_matmul)
def grouped_matmul(
    a: torch.Tensor,
    b: torch.Tensor,
    ends: torch.Tensor,
    *,
    bias: torch.Tensor | None = None,
    activation: str | None = None,
) -> torch.Tensor:
    """``activation(a[rows] @ b[g] + bias[g])`` for the rows of each group ``g``, with gradients.

    The gradients of ``b`` and ``bias`` are products with groups along K.  The host does not read ``ends``.

    Args:
        a: tensor (T, K): the rows of all groups.
        b: tensor (G, K, N).
        ends: tensor (G,) of int32 or int64: the end of each group.
        bias: tensor (G, N).
        activation: as in `matmul`.

    Returns:
        A new tensor (T, N). Rows after the last end have any values, and no gradient.

    Raises:
        LaunchError: shapes or devices do not fit.
        DTypeError: an unsupported dtype or mixture.

    Example:
        >>> b = torch.tensor([[[1.0]], [[10.0]]], requires_grad=True)
        >>> y = grouped_matmul(torch.ones(3, 1), b, torch.tensor([1, 3]))
        >>> y.sum().backward()
        >>> y.flatten().tolist(), b.grad.flatten().tolist()
        ([1.0, 10.0, 10.0], [1.0, 2.0])
    """
    return GROUPED_MATMUL(a, b, ends, bias, activation)


# ---------------------------------------------------------------- reduced products


class ReducedGradient(torch.autograd.Function):
    """Reductions of a product along an axis; gradients compute the product again."""

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: torch.Tensor) -> None:
        """Keep the operands and the result."""
        a, b, bias, *ctx.words = inputs
        ctx.save_for_backward(a, b, bias, output)

    @staticmethod
    def backward(ctx: Any, dy: torch.Tensor) -> Any:
        """Return the gradients. Equal maxima, or minima, share a gradient, as in `torch.amax`."""
        (a, b, bias, y), (reduce, axis, alpha, activation, precision) = ctx.saved_tensors, ctx.words
        needs, words = ctx.needs_input_grad, {"alpha": alpha, "precision": precision}
        sums = matmul(a, b, bias=bias, out_dtype=dy.dtype, **words)
        value, d = sums if activation is None else activated(activation, sums), dy.unsqueeze(axis)
        if reduce == "sum":
            d = d.expand_as(value)
        elif reduce == "logsumexp":
            d = d * torch.exp(value - y.unsqueeze(axis))
        else:
            most = value.amax(axis, keepdim=True) if reduce == "max" else value.amin(axis, keepdim=True)
            equal = (value == most).to(d.dtype)
            d = d * (equal / equal.sum(axis, keepdim=True))
        d = d if activation is None else FROM_SUMS[activation](d, sums)
        narrow = d.to(a.dtype)
        d_a = gradient_of_a(narrow, a, b, **words) if needs[0] else None
        d_b = gradient_of_b(narrow, a, b, **words) if needs[1] else None
        return d_a, d_b, column_sums(d).to(bias.dtype) if needs[2] else None, None, None, None, None, None


REDUCED_MATMUL: Operation = Operation(
    "reduced_matmul(Tensor a, Tensor b, Tensor? bias, str reduce, int axis, float alpha, str? activation, "
    "str precision) -> Tensor",
    lambda a, b, bias, reduce, axis, alpha, activation, precision: of_reduced.reduced_matmul(
        a, b, reduce, axis, alpha=alpha, activation=activation, precision=precision, **present(bias=bias)
    ),
    lambda a, b, bias, reduce, axis, *words: a.new_empty(
        (*product_shape(a, b)[:-2], product_shape(a, b)[-2 if axis == -1 else -1]),
        dtype=torch.float64 if a.dtype == torch.float64 else torch.float32,
    ),
    ReducedGradient,
    cast=range(3),
)


@direct(of_reduced.reduced_matmul)
def reduced_matmul(
    a: torch.Tensor,
    b: torch.Tensor,
    reduce: str,
    axis: int = -1,
    *,
    alpha: float = 1.0,
    bias: torch.Tensor | None = None,
    activation: str | None = None,
    precision: str = "exact",
) -> torch.Tensor:
    """Reductions of ``activation(alpha * (a @ b) + bias)`` along an axis, with gradients.

    One kernel computes it, and stores no element of the product.  Gradients compute the product again.

    Args:
        a: tensor (..., M, K).
        b: tensor (..., K, N) of the same dtype.
        reduce: ``"sum"``, ``"max"``, ``"min"`` or ``"logsumexp"``.
        axis: -1 for one number per row, or -2 for one number per column.
        alpha: a number.
        bias: tensor (N,).
        activation: as in `matmul`.
        precision: as in `tilewright.reduced_matmul`.

    Returns:
        A new tensor (..., M), or (..., N), of f32, or of f64 for f64.

    Raises:
        LaunchError: shapes or devices do not fit, or there is nothing to reduce.
        DTypeError: an unsupported dtype or mixture.

    Example:
        >>> a = torch.tensor([[1.0, 2.0]], requires_grad=True)
        >>> y = reduced_matmul(a, torch.tensor([[3.0, 0.0], [0.0, 4.0]]), "max")
        >>> y.backward()
        >>> y.tolist(), a.grad.tolist()
        ([8.0], [[0.0, 4.0]])
    """
    if type(reduce) is not str or min(a.dim(), b.dim()) < 2:
        raise LaunchError(
            f"tilewright.torch.reduced_matmul: reduce={reduce!r} of {a.dim()} and {b.dim()} dimensions",
            "one name of a reduction, of matrices",
        )
    return REDUCED_MATMUL(a, b, bias, reduce, axis, alpha, activation, precision)


# ---------------------------------------------------------------- scaled products


def scaled_by_kernels(a: Any, b: Any, *, packed: str | None = None, **words: Any) -> Any:
    """Return `tilewright.scaled_mm` of tensors without gradients, whose ``b`` may be ``packed``.

    Args:
        a: the first operand.
        b: the second operand.
        packed: as in `scaled_mm`.
        words: the other arguments.
    """
    if packed is not None:
        codes, table = TABLES.get(packed, (packed, None))
        b = packed_array(b, codes, 0)
        words |= {} if table is None else {"table": table}
    return of_scaled.scaled_mm(a, b, **words)


def _run_scaled(
    a: Any,
    b: Any,
    scale_a: Any,
    scale_b: Any,
    zero_b: Any,
    bias: Any,
    multiply: Any,
    residual: Any,
    factor: float,
    group: int | None,
    packed: str | None,
    activation: str | None,
    out_dtype: torch.dtype | None,
) -> Any:
    given = present(scale_b=scale_b, zero_b=zero_b, bias=bias, multiply=multiply, residual=residual)
    given["scale_a"] = scale_a if scale_a is not None else factor if factor != 1 else None
    words: dict[str, Any] = {
        "group": group,
        "packed": packed,
        "activation": activation,
        "out_dtype": own_dtype(out_dtype),
    }
    return scaled_by_kernels(a, b, **words, **given)


def _fake_scaled(a: Any, b: Any, *args: Any) -> Any:
    packed, out_dtype = args[-3], args[-1]
    packed = TABLES[packed][0] if packed in TABLES else packed
    shape = product_shape(a, b if packed is None else b.repeat_interleave(2, 0))
    return a.new_empty(shape, dtype=scaled_like("scaled_mm", out_dtype, a, b, packed))


class ScaledGradient(torch.autograd.Function):
    """``y = factor * scale_a * (a @ b) * scale_b + bias``, whose ``a`` and ``bias`` have gradients."""

    @staticmethod
    def forward(*args: Any) -> Any:
        """Compute ``y`` in one kernel."""
        *terms, factor, group, packed, out_dtype = args
        return SCALED_MM.inside(*terms, None, None, factor, group, packed, None, out_dtype)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: torch.Tensor) -> None:
        """Keep the codes and scales, but not the activations."""
        a, b, scale_a, scale_b, zero_b, bias, *ctx.words, _ = inputs
        ctx.of_a, ctx.of_bias = (a.dtype, a.shape), None if bias is None else bias.dtype
        ctx.save_for_backward(b, scale_a, scale_b, zero_b)

    @staticmethod
    def backward(ctx: Any, dy: torch.Tensor) -> Any:
        """Return the gradients of ``a``, by a product with the same codes, and of ``bias``."""
        (b, scale_a, scale_b, zero_b), (factor, group, packed) = ctx.saved_tensors, ctx.words
        (kind, shape), needs, d_a, d_bias = ctx.of_a, ctx.needs_input_grad, None, None
        if needs[0]:
            rows = (
                dy
                if scale_a is None
                else dy * (scale_a if scale_a.dim() in (0, dy.dim()) else scale_a[..., None])
            )
            by_columns = group is None and packed is None and b.dim() == 2
            if by_columns and (
                scale_b is None or scale_b.numel() == 1 or scale_b.shape[-1] == scale_b.numel()
            ):
                # Scales are divided by the largest one, so that 16 bits hold the product.
                top = None if scale_b is None else scale_b.float().abs().amax()
                parts = (
                    rows
                    if top is None
                    else rows * (scale_b.float() / torch.where(top > 0, top, 1)).reshape(-1)
                )
                d_a = scaled_mm(parts.to(kind), b.mT, scale_a=factor, scale_b=top, out_dtype=kind)
            else:
                held = numbers_of_codes(b, scale_b, zero_b, group, packed).to(kind)
                like = dy.new_empty(()).expand(shape)
                d_a = gradient_of_a(rows.to(kind), like, held, alpha=factor)
            d_a = d_a.reshape(shape)
        if needs[5]:
            d_bias = bias_gradient(dy, ctx.of_bias)
        return d_a, None, None, None, None, d_bias, None, None, None, None


def _scaled_with_gradient(
    a: Any,
    b: Any,
    scale_a: Any,
    scale_b: Any,
    zero_b: Any,
    bias: Any,
    multiply: Any,
    residual: Any,
    factor: float,
    group: int | None,
    packed: str | None,
    activation: str | None,
    out_dtype: torch.dtype | None,
) -> Any:
    fixed = {"b": b, "scale_a": scale_a, "scale_b": scale_b, "zero_b": zero_b}
    wanted = [name for name, one in fixed.items() if one is not None and one.requires_grad]
    wanted += ["a"] if a.requires_grad and a.dtype not in NARROWED else []
    by_rows = scale_a is None or scale_a.numel() == 1 or scale_a.shape in (a.shape[:-1], (*a.shape[:-1], 1))
    if wanted or a.dim() < 2 or not by_rows:
        what = " and ".join(wanted) or ("a vector" if a.dim() < 2 else "a with scales of blocks")
        raise LaunchError(
            f"tilewright.torch.scaled_mm: {what} has no gradient",
            "detach(), or matmul with weights of 16 bits",
        )
    scales = (scale_a, scale_b, zero_b)
    sums = recorded(ScaledGradient, a, b, *scales, bias, factor, group, packed, out_dtype)
    return finished(sums, activation, multiply, None, residual)


SCALED_MM: Operation = Operation(
    "scaled_mm(Tensor a, Tensor b, Tensor? scale_a, Tensor? scale_b, Tensor? zero_b, Tensor? bias, Tensor? "
    "multiply, Tensor? residual, float factor, int? group, str? packed, str? activation, ScalarType? "
    "out_dtype) -> Tensor",
    _run_scaled,
    _fake_scaled,
    _scaled_with_gradient,
)


@direct(scaled_by_kernels)
def scaled_mm(
    a: torch.Tensor,
    b: torch.Tensor,
    *,
    scale_a: torch.Tensor | float | None = None,
    scale_b: torch.Tensor | float | None = None,
    zero_b: torch.Tensor | None = None,
    group: int | None = None,
    packed: str | None = None,
    bias: torch.Tensor | None = None,
    activation: str | None = None,
    multiply: torch.Tensor | None = None,
    residual: torch.Tensor | None = None,
    out_dtype: torch.dtype | None = None,
) -> torch.Tensor:
    """``activation(scale_a * (a @ b) * scale_b + bias) * multiply + residual`` of quantised numbers.

    Activations ``a`` of f32, f16 and bf16, ``bias``, ``multiply`` and ``residual`` have gradients, codes and
    scales have none.  If each scale belongs to a column, the gradient of ``a`` is a product with the same
    codes; else with the numbers that codes and scales stand for, in the dtype of ``a``.

    Args:
        a: tensor (..., M, K) of float32, float16, bfloat16, fp8 or int8.
        b: tensor (..., K, N) of one of these; or of uint8 (K / 2, N), contiguous along K, with ``packed``.
        scale_a: a number, or a tensor as in `tilewright.scaled_mm`.
        scale_b: the same for ``b``; with ``group`` a tensor (K / group, N).
        zero_b: zero points, with ``group``.
        group: number of neighbours along K that share a scale.
        packed: ``"i4"`` or ``"f4e2m1"``, if each byte of ``b`` has two of these numbers; ``"nf4"``, if it has
            two codes of `tilewright.NF4`.
        bias: tensor (N,).
        activation: as in `matmul`.
        multiply: tensor that is broadcast to the result.
        residual: tensor that is broadcast to the result.
        out_dtype: dtype of the result; default: as in `tilewright.scaled_mm`.

    Returns:
        A new tensor (..., M, N).

    Raises:
        LaunchError: shapes or devices do not fit, or a gradient of codes or scales is wanted.
        DTypeError: an unsupported dtype or mixture.

    Example:
        >>> weights = torch.tensor([[1, 2], [3, -4]], dtype=torch.int8)
        >>> scaled_mm(torch.ones(1, 2), weights, scale_b=torch.tensor([0.5, 2.0])).tolist()
        [[2.0, -4.0]]
    """
    factor, scales = 1.0, [scale_a, scale_b]
    for at, scale in enumerate(scales):
        if isinstance(scale, int | float):
            factor, scales[at] = factor * scale, None
    if factor != 1 and scales[0] is not None:
        scales[0] = scales[0] * factor
        factor = 1.0
    return SCALED_MM(
        *(a, b, *scales, zero_b, bias, multiply, residual), factor, group, packed, activation, out_dtype
    )
