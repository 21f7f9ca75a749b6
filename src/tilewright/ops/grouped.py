"""`grouped_matmul`: products of groups of rows, each with a matrix of its own, in one launch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from operator import itemgetter
from typing import Any

from tilewright import dtypes
from tilewright.calls import launches
from tilewright.dataflow.nodes import EXACT
from tilewright.dtypes import DType
from tilewright.errors import DTypeError, LaunchError
from tilewright.namespaces import part
from tilewright.ops.launching import Call, Launch, LaunchPlan
from tilewright.ops.planning import check_apart, number_dtype
from tilewright.ops.products import grouped
from tilewright.ops.replay import Located, Replay, called
from tilewright.ops.results import check_sums, result_dtype
from tilewright.ops.wanted import Wanted, check_words
from tilewright.runtime.arrays import ArrayInfo
from tilewright.runtime.frameworks import Strided
from tilewright.runtime.plans import Plans
from tilewright.schedule.schedule import Schedule

LISTS = "tilewright.ops.lists:product_of_lists"
"""Multiplies lists of arrays. Imported when the first are multiplied."""

RANKS = {"a": 2, "b": 3, "ends": 1, "bias": 2, "out": 2}
"""Arrays of a call, and of the kernel, with their ranks."""

BIAS, OUT = (tuple(RANKS).index(name) for name in ("bias", "out"))

_PLANS: Plans[Replay] = Plans()


@launches
def grouped_matmul(
    a: Any,
    b: Any,
    ends: Any = None,
    out: Any = None,
    *,
    bias: Any = None,
    activation: str | None = None,
    precision: str = "exact",
    out_dtype: DType | str | None = None,
    schedule: Schedule | None = None,
    target: str | None = None,
    stream: Any = None,
) -> Any:
    """``out[rows] = activation(a[rows] @ b[g] + bias[g])`` for the rows of each group ``g``.

    Group ``g`` has the rows from ``ends[g - 1]`` (0 for the first group) up to, but without, ``ends[g]``;
    groups may be empty.  The kernel reads ``ends`` on the device: a kernel may have just computed them, and
    the host does not wait for them.

    For lists, or tuples, of arrays it is ``out[g] = activation(a[g] @ b[g] + bias[g])`` for every ``g``.  M,
    N, K and the strides may differ from product to product, and any extent may be 0.  One launch computes all
    products; its kernel reads the arrays' addresses from a table.  The host makes the table at every call,
    and on a GPU copies it asynchronously in the stream, without waiting.  A captured graph replays the
    extents and addresses that it was captured with.

    Args:
        a: array (T, K): the rows of all groups, one group after the other; or a list of arrays (M, K).
        b: array (G, K, N): a matrix for each group; or a list of arrays (K, N).
        ends: array (G,) of i32 or i64, which must not descend.  Ends below 0 or beyond T are clamped; rows
            after the last end are not written.  None for lists.
        out: array (T, N) to write; or a list of arrays (M, N), none of which shares memory with another
            array; default: new arrays of the framework of ``a``.
        bias: array (G, N), a row for each group; or a list of arrays (N,).
        activation: as in `matmul`.
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

        Products of any extents:

        >>> many = [np.ones((2, 3)), np.ones((0, 9)), np.ones((1, 5))]
        >>> [c.tolist() for c in tw.grouped_matmul(many, [np.ones((one.shape[1], 2)) for one in many])]
        [[[3.0, 3.0], [3.0, 3.0]], [], [[5.0, 5.0]]]
    """
    wanted = Wanted(
        activation=activation, precision=precision, out_dtype=out_dtype, schedule=schedule, target=target
    )
    check_words(wanted)
    if isinstance(a, list | tuple) or isinstance(b, list | tuple):
        if ends is not None:
            raise LaunchError(
                "grouped_matmul: ends divides the rows of one array into groups, and a or b is a list of "
                "arrays; nearest legal choice: lists without ends"
            )
        return part(LISTS)({"a": a, "b": b, "bias": bias, "out": out}, wanted, stream)
    if ends is None:
        raise LaunchError(
            "grouped_matmul: ends is not given; nearest legal choice: ends=, or lists of arrays"
        )
    given = (a, b, ends, bias, out)
    return called(
        _PLANS,
        given,
        wanted.words if schedule is None else None,
        (),
        stream,
        lambda located: plan_grouped(given, wanted, located).launch(stream),
        itemgetter(OUT),
    )


def plan_grouped(given: Sequence[Any], wanted: Wanted, located: Sequence[Located] = ()) -> LaunchPlan:
    """Check the arguments of `grouped_matmul` of one array each, and plan its launches.

    Args:
        given: the arrays in the order of `RANKS`; None for an absent one.
        wanted: the other arguments of the call.
        located: the keys and addresses of the arrays, if the caller has read them.

    Raises:
        LaunchError: shapes or devices do not fit, or ``out`` shares memory with an input.
        DTypeError: an unsupported dtype or mixture.
    """
    call = Call.of("grouped_matmul", dict(zip(RANKS, given, strict=True)), ("a", "b", "ends"), located)
    arrays, infos = call.arrays, call.infos
    _check_shapes(infos)
    kind = result_dtype(infos, wanted, "grouped_matmul")
    check_sums("grouped_matmul", infos, infos["a"].shape[1], kind, wanted)
    call.serve(wanted.target)
    call.make("out", (infos["a"].shape[0], infos["b"].shape[2]), kind)
    check_apart(infos)
    terms = {"activation"} if wanted.activation is not None else set()
    seen, names = {name: Strided(arrays[name], info) for name, info in infos.items()}, [*RANKS]
    if "bias" in arrays:
        terms.add("bias")
    else:  # the first row of each matrix stands for it, and is not read
        (groups, _, columns), (step, _, unit) = infos["b"].shape, infos["b"].strides
        first_rows = replace(infos["b"], shape=(groups, columns), strides=(step, unit))
        seen["bias"], names[BIAS] = Strided(arrays["b"], first_rows), "b"
    kernel = grouped(number_dtype(infos)).bind(
        precision=wanted.precision if infos["a"].dtype == dtypes.f32 else EXACT,
        terms=frozenset(terms),
        activation=wanted.activation,
        schedule=wanted.schedule,
    )
    product = Launch(kernel, tuple(seen[name] for name in RANKS), tuple(names))
    return call.plan(product, warns=wanted.schedule is None)


def _check_shapes(infos: Mapping[str, ArrayInfo]) -> None:
    """Check that every array has its rank, and that extents of one name agree.

    Raises:
        LaunchError: they do not.
        DTypeError: ends that are no integers of 32 or 64 bits.
    """
    names = {"a": "TK", "b": "GKN", "ends": "G", "bias": "GN", "out": "TN"}
    known: dict[str, tuple[int, str]] = {}
    for name, info in infos.items():
        if len(info.shape) != RANKS[name]:
            raise LaunchError(
                f"grouped_matmul: {name} has shape {info.shape}; nearest legal choice: "
                f"({', '.join(names[name])}{',' * (RANKS[name] == 1)})"
            )
        for dim, extent in zip(names[name], info.shape, strict=True):
            first, where = known.setdefault(dim, (extent, name))
            if first != extent:
                raise LaunchError(
                    f"grouped_matmul: {name} has {dim} = {extent}, and {where} has {dim} = {first}; nearest "
                    f"legal choice: {first}"
                )
    if infos["ends"].dtype not in (dtypes.i32, dtypes.i64):
        raise DTypeError(f"grouped_matmul: ends is {infos['ends'].dtype}; nearest legal choice: i32 or i64")
