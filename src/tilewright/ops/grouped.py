"""`grouped_matmul`: products of groups of rows, each by its own matrix, or of groups along K."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from operator import itemgetter
from typing import Any

from tilewright import dtypes
from tilewright.calls import launches
from tilewright.dtypes import DType
from tilewright.errors import DTypeError, LaunchError
from tilewright.namespaces import part
from tilewright.ops.launching import Call, Launch, LaunchPlan
from tilewright.ops.planning import UPDATED, check_real, drop_unread_c, of_sums, scale_of_c
from tilewright.ops.problem import MatrixBatch, check_broadcast, expanded
from tilewright.ops.products import RARE, grouped, grouped_along_k
from tilewright.ops.replay import Located, Replay, called, repeated
from tilewright.ops.results import check_sums, result_dtype
from tilewright.ops.wanted import Wanted, check_derivative, check_numbers, check_words, dropout_of, said
from tilewright.runtime.arrays import ArrayInfo
from tilewright.runtime.frameworks import Strided
from tilewright.runtime.plans import Plans
from tilewright.schedule.schedule import Schedule

LISTS = "tilewright.ops.lists:product_of_lists"
"""Multiplies lists of arrays. Imported at the first call with lists."""

OP = "grouped_matmul"
"""The operation's name in messages."""

AXES = {"a": "TK", "b": "GKN", "ends": "G", "bias": "GN", "out": "TN"}
"""Arrays of every kernel, in its order, with their axes."""

ALONG_K = {"a": "MT", "b": "TN", "ends": "G", "bias": "GN", "out": "GMN"}
"""The same for groups along K."""

ADDED = ("c", "multiply", "residual")
"""Arrays that are broadcast to the result; only kernels with their terms have them."""

ARRAYS = (*AXES, *ADDED)
"""The arrays of a call."""

_PLANS: Plans[Replay] = Plans()


@repeated(_PLANS, ARRAYS)
@launches
def grouped_matmul(
    a: Any,
    b: Any,
    ends: Any = None,
    out: Any = None,
    *,
    alpha: float = 1.0,
    beta: float | None = None,
    c: Any = None,
    bias: Any = None,
    activation: str | None = None,
    multiply: Any = None,
    derivative: str | None = None,
    dropout: float = 0.0,
    seed: int = 0,
    offset: int = 0,
    residual: Any = None,
    saturate: bool = False,
    precision: str = "exact",
    out_dtype: DType | str | None = None,
    schedule: Schedule | None = None,
    target: str | None = None,
    stream: Any = None,
) -> Any:
    """``out[rows] = activation(a[rows] @ b[g] + bias[g])`` for the rows of each group ``g``.

    With all terms it is ``out[rows] = dropout(activation(alpha * a[rows] @ b[g] + beta * c[rows] + bias[g]) *
    multiply[rows]) + residual[rows]``.

    Group ``g`` has the rows from ``ends[g - 1]`` (0 for the first group) up to, but without, ``ends[g]``;
    groups may be empty.  The kernel reads ``ends`` on the device: a kernel may have just computed them, and
    the host does not wait for them.

    If ``b`` has two dimensions, the groups lie along K: ``out[g] = activation(a[:, k] @ b[k] + bias[g])`` for
    the places ``k`` from ``ends[g - 1]`` up to ``ends[g]``.  The gradients of the matrices of groups of rows
    are such products: ``grouped_matmul(x.T, dy, ends)`` is ``x[rows].T @ dy[rows]`` for each group.

    For lists, or tuples, of arrays it is ``out[g] = activation(a[g] @ b[g] + bias[g])`` for every ``g``.  M,
    N, K and the strides may differ from product to product, and any extent may be 0.  One launch computes all
    products; its kernel reads the arrays' addresses from a table.  The host makes the table at every call,
    and on a GPU copies it asynchronously in the stream, without waiting.  A captured graph replays the
    extents and addresses that it was captured with.

    Args:
        a: array (T, K): the rows of all groups, one group after the other; or (M, T); or a list of arrays
            (M, K).
        b: array (G, K, N): a matrix for each group; or (T, N); or a list of arrays (K, N).
        ends: array (G,) of i32 or i64, which must not descend.  Ends below 0 or beyond T are clamped; rows
            after the last end are not written.  None for lists.
        out: array (T, N) to write; (G, M, N) with groups along K; or a list of arrays (M, N), none of which
            shares memory with another array; default: new arrays of the framework of ``a``.
        alpha: a number. Lists take no ``alpha``, ``beta``, ``c``, ``multiply``, ``derivative``, ``dropout``,
            ``residual`` or ``saturate``.
        beta: a number, as in `matmul`: the factor of ``c``, or of ``out`` if there is no ``c``.
        c: array that is broadcast to the shape of ``out``; it may be ``out``.
        bias: array (G, N), a row for each group; or a list of arrays (N,).
        activation: as in `matmul`.
        multiply: array that is broadcast to the shape of ``out`` and multiplied with the result.
        derivative: as in `matmul`: multiplies by ``derivative'(multiply)``.
        dropout: as in `matmul`; an element's number is its place in ``out``.
        seed: the seed of dropout, as in `matmul`.
        offset: the offset of dropout, as in `matmul`.
        residual: array that is broadcast to the shape of ``out`` and added last; it may be ``out``.
        saturate: as in `matmul`.
        precision: as in `matmul`.
        out_dtype: as in `matmul`.
        schedule: how it is computed; default: chosen for the average group.  For lists, all its ``blocks``
            must run at once, and ``staging="tma"`` needs rows that begin at multiples of 16 bytes.
        target: ``"cpu"``, ``"cuda"`` or ``"reference"``; default: where the arrays lie.
        stream: the CUDA stream; default: the framework's current stream.

    Returns:
        ``out``; for lists a list.

    Raises:
        LaunchError: shapes or devices do not fit, lists differ in length, or ``out`` shares memory with an
            array that is read, or with itself.
        DTypeError: an unsupported dtype or mixture, or two dtypes in one list.

    Example:
        >>> import numpy as np
        >>> import tilewright as tw
        >>> a = np.arange(8, dtype=np.float32).reshape(4, 2)
        >>> b = np.stack([np.eye(2, dtype=np.float32), 10 * np.eye(2, dtype=np.float32)])
        >>> tw.grouped_matmul(a, b, np.int32([1, 4]), target="reference")
        array([[ 0.,  1.],
               [20., 30.],
               [40., 50.],
               [60., 70.]], dtype=float32)

        Groups along K:

        >>> tw.grouped_matmul(a.T, a, np.int32([1, 4]))
        array([[[ 0.,  0.],
                [ 0.,  1.]],
        <BLANKLINE>
               [[56., 68.],
                [68., 83.]]], dtype=float32)

        Products of any extents:

        >>> many = [np.ones((2, 3)), np.ones((0, 9)), np.ones((1, 5))]
        >>> [c.tolist() for c in tw.grouped_matmul(many, [np.ones((one.shape[1], 2)) for one in many])]
        [[[3.0, 3.0], [3.0, 3.0]], [], [[5.0, 5.0]]]
    """
    how = (schedule, target, None, None, False)
    dropped = dropout_of(OP, dropout, seed, offset)
    wanted = Wanted(alpha, beta, activation, precision, out_dtype, *how, derivative, saturate, dropped)
    if isinstance(a, list | tuple) or isinstance(b, list | tuple):
        if ends is not None:
            text = f"{OP}: ends divides the rows of one array into groups, and a or b is a list of arrays"
            raise LaunchError(text, "lists without ends")
        asked = {
            "c": c is not None,
            "multiply": multiply is not None,
            "residual": residual is not None,
            "alpha": alpha != 1,
            "beta": beta is not None,
            "derivative": derivative is not None,
            "dropout": dropped.probability > 0,
            "saturate": saturate,
        }
        if found := [name for name, is_asked in asked.items() if is_asked]:
            raise LaunchError(
                f"{OP}: {', '.join(found)} with lists", "bias and activation, or one array with ends"
            )
        return part(LISTS)({"a": a, "b": b, "bias": bias, "out": out}, wanted, stream)
    if ends is None:
        raise LaunchError(f"{OP}: ends is not given", "ends=, or lists of arrays")
    given = (a, b, ends, bias, out, c, multiply, residual)
    numbers: tuple[Any, ...] = () if alpha in (0, 1) else (alpha,)
    if beta != 0 and (c is not None or beta is not None):  # else c is not read, and the kernel has no beta
        numbers += (1.0 if beta is None else beta,)
    numbers += dropped.numbers if dropped.probability else ()
    return called(
        _PLANS,
        given,
        (said(alpha), said(beta), *wanted.words) if schedule is None else None,
        numbers,
        stream,
        lambda located: plan_grouped(given, wanted, numbers, located).launch(stream),
        itemgetter(ARRAYS.index("out")),
    )


def plan_grouped(
    given: Sequence[Any], wanted: Wanted, numbers: tuple[Any, ...] = (), located: Sequence[Located] = ()
) -> LaunchPlan:
    """Check the arguments of `grouped_matmul` of one array each, and plan its launches.

    Args:
        given: the arrays in the order of `ARRAYS`; None for an absent one.
        wanted: the other arguments of the call.
        numbers: the numbers of the kernel.
        located: the keys and addresses of the arrays, if the caller has read them.

    Raises:
        LaunchError: shapes or devices do not fit, or ``out`` shares memory with an input.
        DTypeError: an unsupported dtype or mixture.
    """
    check_words(wanted)
    check_real(OP, wanted)
    call = Call.of(OP, dict(zip(ARRAYS, given, strict=True)), ("a", "b", "ends"), located)
    arrays, infos = call.arrays, call.infos
    check_derivative(OP, wanted.derivative, multiplies="multiply" in infos)
    axes = ALONG_K if len(infos["b"].shape) == 2 else AXES
    known = _check_shapes(infos, axes)
    shape = tuple(known[dim] for dim in axes["out"])
    summed = "T" if axes is ALONG_K else "K"
    beta = scale_of_c(call, wanted.beta)
    kind = result_dtype(call.dtypes, wanted, OP)
    call.serve(wanted.target)
    drop_unread_c(call, beta, shape)
    check_sums(OP, call.dtypes, known[summed] if wanted.alpha != 0 else 0, kind, wanted)
    call.make("out", shape, kind)
    check_numbers(OP, call.number, alpha=wanted.alpha, beta=beta)
    call.check_apart(updated=UPDATED)
    seen = {name: _seen(call, name, shape) for name in (*AXES, *ADDED) if name in infos}
    if wanted.alpha == 0:  # the operands are not read
        for name in ("a", "b"):
            info, dims = seen[name].info, zip(axes[name], seen[name].info.shape, strict=True)
            info = replace(info, shape=tuple(0 if dim == summed else extent for dim, extent in dims))
            seen[name] = Strided(seen[name].array, info)
    if "bias" not in seen and axes is AXES:  # the first row of each matrix replaces it, and is not read
        info = infos["b"]
        (groups, _, columns), (step, _, unit) = info.shape, info.strides
        seen["bias"] = Strided(arrays["b"], replace(info, shape=(groups, columns), strides=(step, unit)))
    drops = wanted.dropped.probability > 0
    has = {"alpha": wanted.alpha not in (0, 1), "dropout": drops}
    often = ("alpha",) if axes is AXES else ("alpha", "bias")
    rare = tuple(name for name in (*often, *RARE) if name in infos or has.get(name))
    terms = {*rare} | ({"bias"} & infos.keys()) | ({"activation"} if wanted.activation is not None else set())
    terms |= {"saturate"} if wanted.saturate else set()
    kernel = (grouped if axes is AXES else grouped_along_k)(call.number, rare).bind(
        precision=of_sums(wanted.precision, infos["a"].dtype),
        terms=frozenset(terms),
        activation=wanted.activation,
        late=replace(wanted.late, order=tuple(range(len(shape))) if drops else ()),
        schedule=wanted.schedule,
    )
    arrays_of_all = (name for name in axes if name != "out" and name in seen)
    names = (*arrays_of_all, *(name for name in RARE if name in infos), "out")
    places = call.stand_ins(names, {"bias": "b"})
    product = Launch(kernel, tuple(seen[name] for name in names), places, numbers)
    return call.plan(product, warns=wanted.schedule is None)


def _seen(call: Call, name: str, shape: tuple[int, ...]) -> Strided:
    """An array as the kernel sees it: terms are broadcast to the result."""
    info = call.infos[name]
    if name in ADDED:
        check_broadcast(name, info.shape, shape)
        steps = expanded(MatrixBatch(info.shape, info.strides), shape)
        info = replace(info, shape=shape, strides=steps)
    return Strided(call.arrays[name], info)


def _check_shapes(infos: Mapping[str, ArrayInfo], wanted: Mapping[str, str]) -> dict[str, int]:
    """Check that every array has its rank, and that extents of one name agree.

    Args:
        infos: the arrays.
        wanted: their axes.

    Returns:
        The extent of each axis.

    Raises:
        LaunchError: an array has another rank or another extent.
        DTypeError: ends that are no integers of 32 or 64 bits.
    """
    known: dict[str, tuple[int, str]] = {}
    for name, axes in wanted.items():
        if name not in infos:
            continue
        info = infos[name]
        if len(info.shape) != len(axes):
            text = f"grouped_matmul: {name} has shape {info.shape}"
            raise LaunchError(text, f"({', '.join(axes)}{',' * (len(axes) == 1)})")
        for dim, extent in zip(axes, info.shape, strict=True):
            first, where = known.setdefault(dim, (extent, name))
            if first != extent:
                raise LaunchError(
                    f"grouped_matmul: {name} has {dim} = {extent}, and {where} has {dim} = {first}", first
                )
    if infos["ends"].dtype not in (dtypes.i32, dtypes.i64):
        raise DTypeError(f"grouped_matmul: ends is {infos['ends'].dtype}", "i32 or i64")
    return {dim: extent for dim, (extent, _) in known.items()}
