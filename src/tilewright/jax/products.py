"""`matmul`, `linear`, `einsum` and `scaled_mm` for JAX, with gradients by products and rules for `vmap`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache, partial
from string import ascii_letters
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array
from jax.custom_batching import custom_vmap

from tilewright.errors import LaunchError
from tilewright.jax.calls import Made, Read, alike, call, integer, number
from tilewright.ops.contraction import read_subscripts
from tilewright.ops.wanted import Wanted, check_words

ACTIVATIONS: Mapping[str, Callable[[Array], Array]] = {
    "relu": jax.nn.relu,
    "gelu": partial(jax.nn.gelu, approximate=False),
    "gelu_tanh": partial(jax.nn.gelu, approximate=True),
    "silu": jax.nn.silu,
    "sigmoid": jax.nn.sigmoid,
    "tanh": jnp.tanh,
}
"""Activations that JAX computes after a product, if a gradient needs the product's sums."""

FROM_RESULT: Mapping[str, Callable[[Array, Array], Array]] = {
    "relu": lambda dy, y: jnp.where(y > 0, dy, jnp.zeros_like(dy)),
    "sigmoid": lambda dy, y: dy * y * (1 - y),
    "tanh": lambda dy, y: dy * (1 - y * y),
}
"""The gradient before an activation, from the gradient after it and the activation's result."""

NARROWED = {jnp.dtype(jnp.int8): jnp.int32}
"""Dtype of the result for operands whose own dtype is too narrow for it."""


def looped(function: Callable[..., Any], batched: Sequence[Any], *args: Any) -> Any:
    """Call a function for each element of a batch, one after the other.

    Args:
        function: the function.
        batched: for each argument whether it is batched, with the structure of the argument.
        args: the arguments; batches come first.
    """
    leaves, tree = jax.tree.flatten(args)
    are = jax.tree.leaves(tuple(batched))
    moving = [one for one, is_batched in zip(leaves, are, strict=True) if is_batched]

    def once(parts: Sequence[Array]) -> Any:
        rest = iter(parts)
        given = [next(rest) if is_batched else one for one, is_batched in zip(leaves, are, strict=True)]
        return function(*jax.tree.unflatten(tree, given))

    return jax.lax.map(once, moving)


def reduced_to(gradient: Array, shape: tuple[int, ...], dtype: Any) -> Array:
    """Return the gradient of an array that was broadcast: sums over the repeated dimensions.

    Args:
        gradient: the gradient of the broadcast array.
        shape: the shape of the array.
        dtype: its dtype.

    Example:
        >>> reduced_to(jnp.ones((3, 4)), (1, 4), jnp.float32).tolist()
        [[3.0, 3.0, 3.0, 3.0]]
    """
    more = gradient.ndim - len(shape)
    repeated = [more + at for at, extent in enumerate(shape) if extent == 1 != gradient.shape[more + at]]
    axes = (*range(more), *repeated)
    return jnp.sum(gradient, axis=axes).reshape(shape).astype(dtype) if axes else gradient.astype(dtype)


# ---------------------------------------------------------------- matmul


class ProductOptions(NamedTuple):
    """Arguments of `matmul` other than arrays, and whether each operand is transposed in memory."""

    alpha: float = 1.0
    beta: float | None = None
    activation: str | None = None
    precision: str = "exact"
    out_dtype: str | None = None
    turned_a: bool = False
    turned_b: bool = False

    @property
    def plain(self) -> ProductOptions:
        """The options for the sums before the activation."""
        return self._replace(activation=None)

    def shape(self, a: Array, b: Array) -> tuple[int, ...]:
        """Return the shape of a product.

        Raises:
            LaunchError: the extents along K differ.
        """
        rows, along = a.shape[-2:][:: -1 if self.turned_a else 1]
        other, columns = b.shape[-2:][:: -1 if self.turned_b else 1]
        if along != other:
            raise LaunchError(
                f"tilewright.jax.matmul: a has {along} elements along K, and b {other}",
                "operands (..., M, K) and (..., K, N)",
            )
        return *jnp.broadcast_shapes(a.shape[:-2], b.shape[:-2]), rows, columns


def _turned(rank: int, is_turned: bool) -> tuple[int, ...] | None:
    return (*range(rank - 2), rank - 1, rank - 2) if is_turned else None


@lru_cache(maxsize=256)
def _kernel(words: ProductOptions) -> Callable[[Array, Array, dict[str, Array]], Array]:
    """Return one launch of `matmul` with its rule for `vmap`; operands have at least two dimensions."""

    @custom_vmap
    def launched(a: Array, b: Array, terms: dict[str, Array]) -> Array:
        kind = words.out_dtype or NARROWED.get(a.dtype, a.dtype)
        operands = [
            Read("a", a, _turned(a.ndim, words.turned_a)),
            Read("b", b, _turned(b.ndim, words.turned_b)),
            *(Read(name, one) for name, one in terms.items()),
        ]
        given = {"alpha": words.alpha, "activation": words.activation, "precision": words.precision}
        if words.beta is not None:
            given["beta"] = words.beta
        return call("matmul", operands, [Made("out", words.shape(a, b), kind)], **given)[0]

    @launched.def_vmap
    def batched(size: int, are: Any, a: Array, b: Array, terms: dict[str, Array]) -> tuple[Array, bool]:
        of_a, of_b, of_terms = are
        if of_terms.get("bias"):
            if "c" in terms:
                return looped(launched, are, a, b, terms), True
            terms = {name: one for name, one in terms.items() if name != "bias"} | {"c": terms["bias"]}
            of_terms = of_terms | {"c": True}
        if not (of_a or of_b):
            return looped(launched, are, a, b, terms), True
        rank = max(a.ndim - of_a, b.ndim - of_b)

        def whole(one: Array, is_batched: bool) -> Array:
            if not is_batched:
                return one
            return one.reshape(size, *(1,) * (rank + 1 - one.ndim), *one.shape[1:])

        made = {name: one if name == "bias" else whole(one, of_terms[name]) for name, one in terms.items()}
        return launched(whole(a, of_a), whole(b, of_b), made), True

    return launched


@lru_cache(maxsize=256)
def _product(words: ProductOptions) -> Callable[[Array, Array, dict[str, Array]], Array]:
    """Return `matmul` of operands of at least two dimensions, with gradients."""

    @jax.custom_vjp
    def product(a: Array, b: Array, terms: dict[str, Array]) -> Array:
        return _kernel(words)(a, b, terms)

    def forward(a: Array, b: Array, terms: dict[str, Array]) -> tuple[Array, Any]:
        is_last = "multiply" not in terms and (
            words.activation is None or (words.activation in FROM_RESULT and "residual" not in terms)
        )
        if is_last:
            y = product(a, b, terms)  # another derivative differentiates this rule
            return y, (a, b, terms, None if words.activation is None else y, None)
        first = {name: one for name, one in terms.items() if name in ("c", "bias")}
        late = {name: one for name, one in terms.items() if name not in first}
        sums = _product(words.plain)(a, b, first)

        def finished(sums: Array, late: dict[str, Array]) -> Array:
            y = sums if words.activation is None else ACTIVATIONS[words.activation](sums)
            y = y * late["multiply"] if "multiply" in late else y
            return (y + late["residual"] if "residual" in late else y).astype(sums.dtype)

        y, pull = jax.vjp(finished, sums, late)
        return y, (a, b, terms, None, pull)

    def backward(kept: Any, dy: Array) -> tuple[Array, Array, dict[str, Array]]:
        a, b, terms, y, pull = kept
        late = dict[str, Array]()
        dz = dy
        if pull is not None:
            dz, late = pull(dy)
        elif y is not None and words.activation is not None:
            dz = FROM_RESULT[words.activation](dy, y)
        factor = dz.astype(a.dtype)
        own = ProductOptions(alpha=words.alpha, precision=words.precision)
        if words.turned_a:
            d_a = _times(b, factor, own._replace(turned_a=words.turned_b, turned_b=True))
        else:
            d_a = _times(factor, b, own._replace(turned_b=not words.turned_b))
        if words.turned_b:
            d_b = _times(factor, a, own._replace(turned_a=True, turned_b=words.turned_a), like=b)
        else:
            d_b = _times(a, factor, own._replace(turned_a=not words.turned_a), like=b)
        found = dict[str, Array]()
        for name, one in terms.items():
            if name in late:
                found[name] = late[name]
            elif name == "c":
                scaled = dz if words.beta is None else words.beta * dz
                found[name] = reduced_to(scaled, one.shape, one.dtype)
            else:  # the residual of an activation is late, so this one is added to the sums
                found[name] = reduced_to(dz, one.shape, one.dtype)
        return reduced_to(d_a, a.shape, a.dtype), reduced_to(d_b, b.shape, b.dtype), found

    product.defvjp(forward, backward)
    return product


def _times(x: Array, y: Array, words: ProductOptions, like: Array | None = None) -> Array:
    """Return a gradient's product; for an operand ``like`` that a batch shares, K spans the batch too."""
    shared = like is not None and like.ndim == 2 and x.ndim > 2 and x.shape[:-2] == y.shape[:-2]
    if shared and words.turned_a and not words.turned_b:
        x, y = (one.reshape(-1, one.shape[-1]) for one in (x, y))
    return _product(words)(x, y, {})


def matmul(
    a: Array,
    b: Array,
    *,
    c: Array | None = None,
    alpha: float = 1.0,
    beta: float | None = None,
    bias: Array | None = None,
    activation: str | None = None,
    multiply: Array | None = None,
    residual: Array | None = None,
    precision: str = "exact",
    out_dtype: Any = None,
) -> Array:
    """``activation(alpha * (a @ b) + beta * c + bias) * multiply + residual``, with gradients.

    One kernel computes it, as `tilewright.matmul` does.  In reverse mode JAX computes ``multiply``, and
    activations other than ``"relu"``, ``"sigmoid"`` and ``"tanh"``, after the kernel.  The gradients of the
    operands are products by the library's kernels.

    Args:
        a: array (..., M, K), or a vector (K,).
        b: array (..., K, N), or a vector (K,), of the same dtype.
        c: array that is broadcast to the result.
        alpha: a number, not traced.
        beta: the factor of ``c``, likewise; default: 1.
        bias: array (N,).
        activation: ``"relu"``, ``"gelu"``, ``"gelu_tanh"``, ``"silu"``, ``"sigmoid"`` or ``"tanh"``.
        multiply: array that is broadcast to the result.
        residual: array that is broadcast to the result.
        precision: as in `tilewright.matmul`; gradients have the same.
        out_dtype: dtype of the result; default: that of ``a``, or int32 for int8.

    Returns:
        An array (..., M, N).

    Raises:
        LaunchError: extents do not fit.

    Example:
        >>> a, b = jnp.array([[1.0, 2.0]]), jnp.array([[3.0], [-4.0]])
        >>> def loss(a):
        ...     return matmul(a, b, activation="relu", bias=jnp.array([6.0])).sum()
        >>> loss(a).item(), jax.jit(jax.grad(loss))(a).tolist()
        (1.0, [[3.0, -4.0]])
    """
    kind = None if out_dtype is None else jnp.dtype(out_dtype).name
    factors = number("matmul", "alpha", alpha), None if beta is None else number("matmul", "beta", beta)
    words = ProductOptions(*factors, activation, precision, kind)
    return _with_vectors(words, a, b, c=c, bias=bias, multiply=multiply, residual=residual)


def _with_vectors(words: ProductOptions, a: Array, b: Array, **given: Array | None) -> Array:
    """Compute a product whose operands may be vectors."""
    check_words(Wanted(activation=words.activation, precision=words.precision))
    terms = {name: jnp.asarray(one) for name, one in given.items() if one is not None}
    a, b = jnp.asarray(a), jnp.asarray(b)
    if a.dtype != b.dtype or not a.ndim or not b.ndim:
        raise LaunchError(
            f"tilewright.jax.matmul: a is {a.dtype} {a.shape}, and b {b.dtype} {b.shape}",
            "operands of one dtype and one dimension or more",
        )
    one_row, one_column = a.ndim == 1, b.ndim == 1
    if one_column:
        b = b[:, None] if not words.turned_b else b[None]
        terms = {name: one[..., None] if one.ndim else one for name, one in terms.items()}
    if one_row:
        a = a[None]
        terms = {name: one[..., None, :] if one.ndim > 1 else one for name, one in terms.items()}
    shape = words.shape(a, b)
    for name, one in terms.items():
        pairs = zip(reversed(one.shape), reversed(shape), strict=False)
        fits = one.ndim <= len(shape) and all(extent in (1, whole) for extent, whole in pairs)
        if not fits or (name == "bias" and one.shape != shape[-1:]):
            legal = shape[-1:] if name == "bias" else shape
            raise LaunchError(
                f"tilewright.jax.matmul: {name} has shape {jnp.shape(given[name])}",
                f"{legal}{'' if name == 'bias' else ', or a shape that is broadcast to it'}",
            )
    made = _product(words)(*alike((a, b, terms)))
    made = made[..., 0] if one_column else made
    return made.squeeze(-1 if one_column else -2) if one_row else made


def linear(
    x: Array,
    weight: Array,
    bias: Array | None = None,
    *,
    activation: str | None = None,
    residual: Array | None = None,
    precision: str = "exact",
) -> Array:
    """``activation(x @ weightᵀ + bias) + residual``, with gradients; no transposed weight is stored.

    Args:
        x: array (..., K), or a vector (K,).
        weight: array (N, K).
        bias: array (N,).
        activation: as in `matmul`.
        residual: array that is broadcast to the result.
        precision: as in `matmul`.

    Returns:
        An array (..., N).

    Raises:
        LaunchError: extents do not fit.

    Example:
        >>> linear(jnp.ones((2, 3)), jnp.ones((1, 3)), jnp.array([0.5])).tolist()
        [[3.5], [3.5]]
    """
    words = ProductOptions(activation=activation, precision=precision, turned_b=True)
    return _with_vectors(words, x, weight, bias=bias, residual=residual)


# ---------------------------------------------------------------- einsum


class ContractionOptions(NamedTuple):
    """Arguments of `einsum` other than arrays; every label is one letter."""

    a: str
    b: str
    out: str
    alpha: float
    precision: str
    out_dtype: str | None = None

    @property
    def subscripts(self) -> str:
        """The subscripts in one string."""
        return f"{self.a},{self.b}->{self.out}"


@lru_cache(maxsize=256)
def _contraction(words: ContractionOptions) -> Callable[[Array, Array], Array]:
    """Return a contraction with gradients and a rule for `vmap`."""

    @custom_vmap
    def launched(a: Array, b: Array) -> Array:
        extents = dict(zip(words.a + words.b, a.shape + b.shape, strict=True))
        shape = tuple(extents[label] for label in words.out)
        made = [Made("out", shape, words.out_dtype or NARROWED.get(a.dtype, a.dtype))]
        more = {"alpha": words.alpha, "precision": words.precision}
        return call("einsum", [Read("a", a), Read("b", b)], made, subscripts=words.subscripts, **more)[0]

    @launched.def_vmap
    def batched(_size: int, are: Any, a: Array, b: Array) -> tuple[Array, bool]:
        label = next(one for one in ascii_letters if one not in words.a + words.b)
        of_a, of_b = (label if is_batched else "" for is_batched in are)
        more = words._replace(a=of_a + words.a, b=of_b + words.b, out=label + words.out)
        return _contraction(more)(a, b), True

    @jax.custom_vjp
    def contraction(a: Array, b: Array) -> Array:
        return launched(a, b)

    def backward(kept: tuple[Array, Array], dy: Array) -> tuple[Array, Array]:
        a, b = kept
        dy = dy.astype(a.dtype)
        return _gradient(words, dy, b, a, words.b, words.a), _gradient(words, dy, a, b, words.a, words.b)

    contraction.defvjp(lambda a, b: (contraction(a, b), (a, b)), backward)
    return contraction


def _gradient(
    words: ContractionOptions, dy: Array, other: Array, one: Array, of_other: str, of_one: str
) -> Array:
    """Return the gradient of one factor: a contraction of the result's gradient and the other factor."""
    kept = "".join(label for label in of_one if label in words.out + of_other)
    found = _contraction(ContractionOptions(words.out, of_other, kept, words.alpha, words.precision))(
        dy, other
    )
    # Axes of the factor that neither of the two has were summed over.
    at = [axis for axis, label in enumerate(of_one) if label not in kept]
    return jnp.broadcast_to(jnp.expand_dims(found, at), one.shape)


def einsum(subscripts: str, a: Array, b: Array, *, alpha: float = 1.0, precision: str = "exact") -> Array:
    """``alpha * contraction(a, b)``, with gradients, which are contractions again.

    Args:
        subscripts: as in `tilewright.einsum`, e.g. ``"bsk,khe->bhse"``; no label occurs twice in an operand.
        a: array.
        b: array of the same dtype.
        alpha: a number, not traced.
        precision: as in `tilewright.einsum`.

    Returns:
        An array, contiguous in the order of the subscripts.

    Raises:
        LaunchError: subscripts or extents do not fit.

    Example:
        >>> x = jnp.arange(6.0).reshape(2, 3)
        >>> jax.grad(lambda x: einsum("ij,j->i", x, jnp.array([1.0, 0.0, 2.0])).sum())(x).tolist()
        [[1.0, 0.0, 2.0], [1.0, 0.0, 2.0]]
    """
    return _contracted(subscripts, a, b, number("einsum", "alpha", alpha), precision)


def _contracted(
    subscripts: str, a: Array, b: Array, alpha: float, precision: str, out_dtype: str | None = None
) -> Array:
    """Compute a contraction with gradients; the result may be wider than the operands."""
    check_words(Wanted(precision=precision))
    a, b = jnp.asarray(a), jnp.asarray(b)
    named = read_subscripts(subscripts, (a.ndim, b.ndim))
    labels = dict.fromkeys((*named.a, *named.b))
    letters = dict(zip(labels, ascii_letters, strict=False))
    extents = dict(zip((*named.a, *named.b), a.shape + b.shape, strict=True))
    has_twice = any(len({*own}) < len(own) for own in (named.a, named.b))
    if has_twice or len(labels) >= len(ascii_letters) or a.dtype != b.dtype:
        raise LaunchError(
            f"tilewright.jax.einsum: {subscripts!r} of {a.dtype} and {b.dtype}",
            "labels that occur once in each operand, and one dtype",
        )
    for label, extent in zip(named.a, a.shape, strict=True):
        if extents[label] != extent:
            raise LaunchError(
                f"tilewright.jax.einsum: {subscripts!r} gives {label} the extents {extent} and "
                f"{extents[label]}",
                f"{extent} in both operands",
            )
    left, right, out = ("".join(letters[label] for label in own) for own in (named.a, named.b, named.out))
    words = ContractionOptions(left, right, out, alpha, precision, out_dtype)
    return _contraction(words)(*alike((a, b)))


def dot_general(
    lhs: Array,
    rhs: Array,
    dimension_numbers: Any,
    precision: Any = None,
    preferred_element_type: Any = None,
    **_options: Any,
) -> Array:
    """``jax.lax.dot_general`` by `einsum`, with gradients; layers of Flax accept it as their ``dot_general``.

    Args:
        lhs: array.
        rhs: array; if dtypes differ, both are promoted as JAX does.
        dimension_numbers: ``((contracted of lhs, of rhs), (batches of lhs, of rhs))``.
        precision: ignored: products are exact, and sums in f32 or f64.
        preferred_element_type: dtype of the result; default: that of the operands.

    Returns:
        An array: batches, the other axes of ``lhs``, and those of ``rhs``.

    Raises:
        LaunchError: extents do not fit.

    Example:
        >>> a, b = jnp.ones((2, 3, 4)), jnp.ones((4, 2, 5))
        >>> dot_general(a, b, (((2,), (0,)), ((0,), (1,)))).shape
        (2, 3, 5)
    """
    lhs, rhs = jnp.asarray(lhs), jnp.asarray(rhs)
    (of_left, of_right), (batch_left, batch_right) = dimension_numbers
    letters = iter(ascii_letters)
    left, right = ([""] * one.ndim for one in (lhs, rhs))
    for at, to in (*zip(batch_left, batch_right, strict=True), *zip(of_left, of_right, strict=True)):
        left[at] = right[to] = next(letters)
    rows = [at for at, label in enumerate(left) if not label]
    columns = [at for at, label in enumerate(right) if not label]
    for own, places in ((left, rows), (right, columns)):
        for at in places:
            own[at] = next(letters)
    result = [*(left[at] for at in batch_left), *(left[at] for at in rows), *(right[at] for at in columns)]
    kind = jnp.promote_types(lhs.dtype, rhs.dtype)
    spelled = f"{''.join(left)},{''.join(right)}->{''.join(result)}"
    wanted = jnp.dtype(preferred_element_type or kind)
    # Sums of numbers of 8 and 16 bits are f32: a wider result is rounded once.
    is_wider = wanted in (jnp.float32, jnp.float16, jnp.bfloat16) and kind.itemsize < wanted.itemsize
    stored = wanted.name if is_wider and jnp.issubdtype(kind, jnp.floating) else None
    made = _contracted(spelled, lhs.astype(kind), rhs.astype(kind), 1.0, "exact", stored)
    return made.astype(wanted)


# ---------------------------------------------------------------- scaled products


def scaled_mm(
    a: Array,
    b: Array,
    *,
    scale_a: Array | float | None = None,
    scale_b: Array | float | None = None,
    zero_b: Array | None = None,
    group: int | None = None,
    packed: str | None = None,
    bias: Array | None = None,
    activation: str | None = None,
    residual: Array | None = None,
    out_dtype: Any = jnp.float32,
) -> Array:
    """``activation(scale_a * (a @ bᵀ) * scale_b + bias) + residual`` of quantised numbers, without gradients.

    Args:
        a: array (..., M, K) of float32, float16, bfloat16, fp8 or int8.
        b: array (N, K) of one of these; or of uint8 (N, K / 2) with ``packed``: weights as in `linear`.
        scale_a: a number, not traced, or an array as in `tilewright.scaled_mm`.
        scale_b: the same for ``b``; with ``group`` an array (K / group, N).
        zero_b: zero points, with ``group``.
        group: number of neighbours along K that share a scale.
        packed: ``"i4"`` or ``"f4e2m1"``, if each byte of ``b`` has two of these numbers.
        bias: array (N,).
        activation: as in `matmul`.
        residual: array that is broadcast to the result.
        out_dtype: dtype of the result.

    Returns:
        An array (..., M, N).

    Raises:
        LaunchError: extents do not fit.

    Example:
        >>> weights = jnp.array([[1, 3], [2, -4]], jnp.int8)
        >>> scaled_mm(jnp.ones((1, 2)), weights, scale_b=jnp.array([0.5, 2.0])).tolist()
        [[2.0, -4.0]]
    """
    check_words(Wanted(activation=activation))
    columns, along = b.shape[0], b.shape[1] * (1 if packed is None else 2)
    if a.shape[-1] != along:
        raise LaunchError(
            f"tilewright.jax.scaled_mm: a has {a.shape[-1]} elements along K, and b {along}",
            "operands (..., M, K) and (N, K)",
        )
    neighbours = group if group is None else integer("scaled_mm", "group", group)
    given = {"scale_a": scale_a, "scale_b": scale_b, "zero_b": zero_b, "bias": bias, "residual": residual}
    numbers = {name: float(one) for name, one in given.items() if isinstance(one, int | float)}
    arrays = {name: one for name, one in given.items() if one is not None and name not in numbers}

    @custom_vmap
    def launched(a: Array, b: Array, arrays: dict[str, Array]) -> Array:
        operands = [Read("a", a), Read("b", b, (1, 0), packed)]
        operands += [Read(name, one) for name, one in arrays.items()]
        made = [Made("out", (*a.shape[:-1], columns), out_dtype)]
        return call("scaled_mm", operands, made, group=neighbours, activation=activation, **numbers)[0]

    @launched.def_vmap
    def batched(size: int, are: Any, a: Array, b: Array, arrays: dict[str, Array]) -> tuple[Array, bool]:
        of_a, of_b, of_arrays = are
        alone = [name for name, is_batched in of_arrays.items() if is_batched and name != "residual"]
        if not of_a or of_b or alone or "scale_a" in arrays or a.ndim < 3:
            return looped(launched, are, a, b, arrays), True
        if of_arrays.get("residual"):  # the dimensions of a result come after those of the batch
            one = arrays["residual"]
            shape = (size, *(1,) * (a.ndim - one.ndim), *one.shape[1:])
            arrays = arrays | {"residual": one.reshape(shape)}
        return launched(a, b, arrays), True

    return launched(*alike((a, b, arrays)))
