"""`einsum`, `complex_matmul`, `im2col` and `col2im` for PyTorch; gradients are these operations again."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from math import prod
from string import ascii_letters
from typing import Any

import torch

from tilewright.errors import LaunchError
from tilewright.ops import col2im as of_col2im
from tilewright.ops import complex_matmul as of_complex
from tilewright.ops import einsum as of_einsum
from tilewright.ops.contraction import Subscripts, read_subscripts
from tilewright.torch.registry import Operation
from tilewright.torch.terms import finished, own_dtype, product_shape, result_like

# ---------------------------------------------------------------- einsum


class EinsumGradient(torch.autograd.Function):
    """``y = alpha * contraction(op(a), op(b))``."""

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
    lambda subscripts, a, b, alpha, conjugate_a, conjugate_b, precision, out_dtype: of_einsum.einsum(
        subscripts,
        a,
        b,
        alpha=alpha,
        conjugate_a=conjugate_a,
        conjugate_b=conjugate_b,
        precision=precision,
        out_dtype=own_dtype(out_dtype),
    ),
    _fake_einsum,
    EinsumGradient,
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


# ---------------------------------------------------------------- gradients summed over batches


def _broadcast(one: torch.Tensor, shape: Sequence[Any]) -> tuple[torch.Tensor, str]:
    """Return an operand without batch dimensions of extent 1, and the letters of those that it keeps."""
    lead = one.shape[:-2]
    named = ascii_letters[len(shape) - len(lead) : len(shape)]
    kept = [at for at, extent in enumerate(lead) if extent != 1]
    return one.reshape(*(lead[at] for at in kept), *one.shape[-2:]), "".join(named[at] for at in kept)


def summed_product(
    one: torch.Tensor, other: torch.Tensor, like: torch.Tensor, axes: str, **options: Any
) -> torch.Tensor:
    """Return the gradient of an operand that is broadcast over batches, by one contraction.

    Args:
        one: the first factor, a batch of matrices.
        other: the second factor.
        like: the operand.
        axes: letters of the matrices of ``one``, ``other`` and the result, e.g. ``"mn,kn->mk"``.
        options: arguments of `einsum`.

    Example:
        >>> dy, b = torch.ones(4, 2, 5), torch.ones(4, 3, 5)
        >>> summed_product(dy, b, torch.ones(2, 3), "mn,kn->mk")[0].tolist()
        [20.0, 20.0, 20.0]
    """
    shape = torch.broadcast_shapes(one.shape[:-2], other.shape[:-2])
    (first, second), result = axes.partition("->")[0].split(","), axes.partition("->")[2]
    x, of_x = _broadcast(one, shape)
    y, of_y = _broadcast(other, shape)
    _, kept = _broadcast(like, shape)
    # Letters of batches are lower-case, and there are fewer than 13 of them.
    found = einsum(f"{of_x}{first.upper()},{of_y}{second.upper()}->{kept}{result.upper()}", x, y, **options)
    return found.reshape(like.shape)


def as_matrices(a: torch.Tensor, b: torch.Tensor, dy: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Return the operands and the result's gradient with the dimensions that vectors lack.

    Example:
        >>> [tuple(one.shape) for one in as_matrices(torch.ones(3), torch.ones(3, 4), torch.ones(4))]
        [(1, 3), (3, 4), (1, 4)]
    """
    if b.dim() == 1:
        b, dy = b[:, None], dy[..., None]
    if a.dim() == 1:
        a, dy = a[None], dy.unsqueeze(-2)
    return a, b, dy


# ---------------------------------------------------------------- complex numbers


class ComplexGradient(torch.autograd.Function):
    """``y = alpha * op(a) @ op(b) + beta * c`` of complex tensors."""

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
        one, other, factor = as_matrices(a, b, dy.to(a.dtype))
        d_a = d_b = d_c = None
        # With D = conj(alpha) dY op(B)ᴴ, dA is D, or conj(D) if `a` was conjugated; and so for `b`.
        if ctx.needs_input_grad[0]:
            scale = alpha if conj_a else alpha.conjugate()
            options = {"alpha": scale, "conjugate_a": conj_a, "conjugate_b": conj_b == conj_a}
            if factor.shape[:-2] == one.shape[:-2]:
                d_a = complex_matmul(factor, other.mT, precision=precision, **options)
            else:
                d_a = summed_product(factor, other, one, "mn,kn->mk", precision=precision, **options)
            d_a = d_a.reshape(a.shape)
        if ctx.needs_input_grad[1]:
            scale = alpha if conj_b else alpha.conjugate()
            options = {"alpha": scale, "conjugate_a": conj_a == conj_b, "conjugate_b": conj_b}
            if factor.shape[:-2] == other.shape[:-2]:
                d_b = complex_matmul(one.mT, factor, precision=precision, **options)
            else:
                d_b = summed_product(one, factor, other, "mk,mn->kn", precision=precision, **options)
            d_b = d_b.reshape(b.shape)
        if ctx.of_c is not None:
            shape, kind = ctx.of_c
            scaled = dy if beta is None else beta.conjugate() * dy
            d_c = scaled.sum_to_size(shape).to(kind)
        return d_a, d_b, d_c, None, None, None, None, None, None


COMPLEX_MATMUL = Operation(
    "complex_matmul(Tensor a, Tensor b, Tensor? c, Scalar alpha, Scalar? beta, bool conjugate_a, bool "
    "conjugate_b, str precision, ScalarType? out_dtype) -> Tensor",
    lambda a, b, c, alpha, beta, conjugate_a, conjugate_b, precision, out_dtype: of_complex.complex_matmul(
        a,
        b,
        c,
        alpha=alpha,
        beta=beta,
        conjugate_a=conjugate_a,
        conjugate_b=conjugate_b,
        precision=precision,
        out_dtype=own_dtype(out_dtype),
    ),
    lambda a, b, c, *words: torch.Tensor.new_empty(a, product_shape(a, b), dtype=words[-1] or a.dtype),
    ComplexGradient,
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


# ---------------------------------------------------------------- columns and images


class Im2colGradient(torch.autograd.Function):
    """`im2col` of images (N, H, W, C), whose gradient adds columns up."""

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: torch.Tensor) -> None:
        """Keep the geometry."""
        ctx.of_image, (*ctx.words,) = inputs[0].shape, inputs[1:]

    @staticmethod
    def backward(ctx: Any, dy: torch.Tensor) -> Any:
        """Return the image of the gradient, by one kernel."""
        return COL2IM(dy, list(ctx.of_image), *ctx.words), None, None, None, None


def _read_columns(
    image: torch.Tensor,
    taps: Sequence[int],
    stride: Sequence[int],
    dilation: Sequence[int],
    padding: Sequence[int],
) -> torch.Tensor:
    """Return the columns, which PyTorch copies from a strided view of the padded image."""
    seen = torch.nn.functional.pad(image, (0, 0, *(pad for one in reversed(padding) for pad in (one, one))))
    batch, *steps, channel = seen.stride()
    places = _places(image, taps, stride, dilation, padding)
    strides = [
        *(batch, *(one * by for one, by in zip(steps, stride, strict=True))),
        *(*(one * by for one, by in zip(steps, dilation, strict=True)), channel),
    ]
    extents = (image.shape[0], *places, *taps, image.shape[-1])
    columns = seen.as_strided(extents, strides, seen.storage_offset())
    return columns.reshape(image.shape[0] * prod(places), prod(taps) * image.shape[-1]).clone()


def _places(
    image: torch.Tensor,
    taps: Sequence[int],
    stride: Sequence[int],
    dilation: Sequence[int],
    padding: Sequence[int],
) -> list[int]:
    """Return the number of filter positions along each spatial dimension."""
    extents = zip(image.shape[1:-1], taps, stride, dilation, padding, strict=True)
    return [(n + 2 * pad - (tap - 1) * apart - 1) // step + 1 for n, tap, step, apart, pad in extents]


IM2COL: Operation = Operation(
    "im2col(Tensor image, SymInt[] filter, SymInt[] stride, SymInt[] dilation, SymInt[] padding) -> Tensor",
    _read_columns,
    lambda image, taps, *words: image.new_empty(
        (image.shape[0] * prod(_places(image, taps, *words)), prod(taps) * image.shape[-1])
    ),
    Im2colGradient,
)


def im2col(
    image: torch.Tensor,
    *,
    filter: Sequence[int],  # noqa: A002
    stride: int | Sequence[int] = 1,
    dilation: int | Sequence[int] = 1,
    padding: int | Sequence[int] = 0,
) -> torch.Tensor:
    """The columns (N*Ho*Wo, Y*X*C) of an image, which a convolution multiplies by filters, with gradients.

    PyTorch copies them; the gradient is `col2im`.

    Args:
        image: tensor (N, H, W, C), or of another number of spatial dimensions.
        filter: extents of the filter, one per spatial dimension.
        stride: distance between positions of the filter; a number, or one per spatial dimension.
        dilation: distance between taps of the filter, likewise.
        padding: elements around the image, likewise.

    Returns:
        A new tensor.

    Raises:
        LaunchError: the filter does not fit into the padded image, or a number is too small.

    Example:
        >>> im2col(torch.arange(9.0).reshape(1, 3, 3, 1), filter=(2, 2))[0].tolist()
        [0.0, 1.0, 3.0, 4.0]
    """
    words = {"filter": filter, "stride": stride, "dilation": dilation, "padding": padding}
    taps, *how = _for_each("im2col", image.dim() - 2, words)
    if image.dim() < 3 or min(_places(image, taps, *how)) < 1:
        raise LaunchError(
            f"tilewright.torch.im2col: a filter of {tuple(taps)} has no place in an image of "
            f"{tuple(image.shape)}",
            f"a filter with an extent for each of the {max(image.dim() - 2, 1)} spatial dimensions, none "
            "larger than the padded image",
        )
    return IM2COL(image, taps, *how)


def _for_each(op: str, rank: int, words: Mapping[str, int | Sequence[int]]) -> list[list[int]]:
    """Return each argument as a list with one number per spatial dimension.

    Raises:
        LaunchError: another number of them, or one that is too small.
    """
    made = list[list[int]]()
    for name, one in words.items():
        least, repeats = 0 if name == "padding" else 1, 1 if name == "filter" else rank
        numbers = list(one) if isinstance(one, Iterable) else [one] * repeats
        if rank > 0 and (len(numbers) != rank or min(numbers) < least):
            raise LaunchError(
                f"tilewright.torch.{op}: {name}={one}",
                f"{rank} numbers of at least {least}, one for each spatial dimension",
            )
        made.append(numbers)
    return made


class Col2imGradient(torch.autograd.Function):
    """`col2im` of images (N, H, W, C), whose gradient reads the columns back."""

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: torch.Tensor) -> None:
        """Keep the geometry."""
        ctx.of_columns, (*ctx.words,) = inputs[0].shape, inputs[1:]

    @staticmethod
    def backward(ctx: Any, dy: torch.Tensor) -> Any:
        """Return the columns of the gradient."""
        _, *words = ctx.words
        return IM2COL(dy, *words).reshape(ctx.of_columns), None, None, None, None, None


COL2IM: Operation = Operation(
    "col2im(Tensor columns, SymInt[] shape, SymInt[] filter, SymInt[] stride, SymInt[] dilation, SymInt[] "
    "padding) -> Tensor",
    lambda columns, shape, taps, stride, dilation, padding: of_col2im.col2im(
        columns,
        tuple(shape),
        spatial=tuple(range(1, len(shape) - 1)),
        filter=tuple(taps),
        stride=tuple(stride),
        dilation=tuple(dilation),
        padding=tuple(padding),
    ),
    lambda columns, shape, *words: columns.new_empty(
        shape, dtype=columns.dtype if columns.is_floating_point() else torch.int32
    ),
    Col2imGradient,
)


def col2im(
    columns: torch.Tensor,
    shape: Sequence[int],
    *,
    filter: Sequence[int],  # noqa: A002
    stride: int | Sequence[int] = 1,
    dilation: int | Sequence[int] = 1,
    padding: int | Sequence[int] = 0,
) -> torch.Tensor:
    """The image (N, H, W, C) whose elements are sums of columns, as in `tilewright.col2im`, with gradients.

    Args:
        columns: tensor (N*Ho*Wo, Y*X*C).
        shape: extents of the image; the first dimension has images, the last one channels.
        filter: extents of the filter, one per spatial dimension.
        stride: distance between positions of the filter; a number, or one per spatial dimension.
        dilation: distance between taps of the filter, likewise.
        padding: elements around the image, likewise.

    Returns:
        A new tensor.

    Raises:
        LaunchError: shapes do not fit.
        DTypeError: an unsupported dtype.

    Example:
        >>> col2im(torch.ones(4, 4), (1, 3, 3, 1), filter=(2, 2))[0, :, :, 0].tolist()
        [[1.0, 2.0, 1.0], [2.0, 4.0, 2.0], [1.0, 2.0, 1.0]]
    """
    words = {"filter": filter, "stride": stride, "dilation": dilation, "padding": padding}
    return COL2IM(columns, list(shape), *_for_each("col2im", len(shape) - 2, words))
