"""Products as matrices: NumPy's rules for shapes, and batches of as few dimensions as strides allow."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from tilewright.errors import LaunchError
from tilewright.ops.ending import LateTerms
from tilewright.ops.wanted import Wanted
from tilewright.runtime.frameworks import ArrayInfo

MOST = 2**31 - 1
"""The largest extent that dimensions are joined to."""

INDEX = "index"
"""Stands for an array with the number of each element of the result; dropout depends on these numbers."""

OTHERS = ("a", "b", "bias")
"""The arrays that are not broadcast to the result."""

IMAGINARY = "_im"
"""Suffix of the name of an array of imaginary parts, with the dimensions of the real parts."""

OF_BLOCKS = "_scales"
"""Suffix of the name of an array of scales with the dimensions of its operand."""


@dataclass(frozen=True)
class Matrices:
    """One operand as matrices: one for each index of the batches.

    Args:
        shape: extents: batches first, then rows and columns; the bias has only columns.
        strides: strides of these dimensions, in elements; 0 repeats.
    """

    shape: tuple[int, ...]
    strides: tuple[int, ...]

    def of(self, info: ArrayInfo) -> ArrayInfo:
        """Return an array with these extents and strides."""
        return replace(info, shape=self.shape, strides=self.strides)

    def without(self, *dims: int) -> Matrices:
        """Return the matrices without some dimensions, as kernels take scales and biases.

        Example:
            >>> Matrices((4, 3), (3, 1)).without(-2)
            Matrices(shape=(3,), strides=(1,))
        """
        rank = len(self.shape)
        kept = [dim for dim in range(rank) if dim not in dims and dim - rank not in dims]
        return Matrices(tuple(self.shape[dim] for dim in kept), tuple(self.strides[dim] for dim in kept))


@dataclass(frozen=True)
class Problem:
    """``out[..., m, n] = sum_k a[..., m, k] * b[..., k, n]``, with the terms after the sums.

    Args:
        batch: extents of the batches, as few as the strides allow.
        m: rows of a and of the result.
        n: columns of b and of the result.
        k: columns of a, rows of b.
        operands: every array as matrices of these extents, by name; each begins where the caller's begins.
    """

    batch: tuple[int, ...]
    m: int
    n: int
    k: int
    operands: Mapping[str, Matrices]

    def without_products(self) -> Problem:
        """The problem with K = 0, for alpha = 0 as in BLAS: A and B are not read, and every sum is 0."""
        shortened = dict(self.operands)
        for name, one in self.operands.items():
            if is_part_of(name, "a"):
                shortened[name] = replace(one, shape=(*one.shape[:-1], 0))
            elif is_part_of(name, "b"):
                shortened[name] = replace(one, shape=(*one.shape[:-2], 0, one.shape[-1]))
        return replace(self, k=0, operands=shortened)


def result_shape(a: Sequence[int], b: Sequence[int], op: str = "matmul") -> tuple[int, ...]:
    """The shape of ``a @ b`` by NumPy's rules.

    A vector on the left is one row, a vector on the right one column; the result lacks that dimension.
    Leading dimensions are batches, which are broadcast against each other.

    Args:
        a: extents of the array on the left.
        b: extents of the array on the right.
        op: the operation's name in messages.

    Raises:
        LaunchError: an operand without dimensions, or shapes that do not fit; says which extents.

    Example:
        >>> result_shape((5, 1, 2, 3), (4, 3, 7)), result_shape((3,), (3, 7)), result_shape((3,), (3,))
        ((5, 4, 2, 7), (7,), ())
    """
    a, b = tuple(a), tuple(b)
    for name, shape in (("a", a), ("b", b)):
        if not shape:
            raise LaunchError(
                f"{op} of shapes {a} and {b}: {name} has no dimensions, so there is no K to sum along; "
                "nearest legal choice: a * b"
            )
    depth_b = b[-2] if len(b) > 1 else b[0]
    if a[-1] != depth_b:
        near = ""
        if len(b) == 2 and a[-1] == b[-1]:
            near = "; nearest: b.T"
        elif len(a) == 2 and a[0] == depth_b:
            near = "; nearest: a.T"
        raise LaunchError(f"{op} of shapes {a} and {b}: K is {a[-1]} in a and {depth_b} in b{near}")
    return (*_broadcast(a, b, op), *a[-2:-1], *(b[-1:] if len(b) > 1 else ()))


def _broadcast(a: tuple[int, ...], b: tuple[int, ...], op: str) -> tuple[int, ...]:
    first, second = a[:-2], b[:-2]
    rank = max(len(first), len(second))
    pairs = zip((1,) * (rank - len(first)) + first, (1,) * (rank - len(second)) + second, strict=True)
    made = []
    for one, other in pairs:
        if one != other and 1 not in (one, other):
            raise LaunchError(
                f"{op} of shapes {a} and {b}: the batch dimensions {first} and {second} do not broadcast: "
                f"{one} and {other} differ, and neither is 1"
            )
        made.append(other if one == 1 else one)
    return tuple(made)


def problem_of(arrays: Mapping[str, ArrayInfo], alone: str = "") -> Problem:
    """The problem of the arrays.

    Args:
        arrays: the arrays called ``a``, ``b``, ``out``, and, where it is given, ``bias``, one number for each
            column; all others, such as ``c``, are broadcast to the result. An array ``a_...`` or ``b_...``,
            such as the imaginary parts ``a_im``, has the shape of that operand.
        alone: ``"m"`` or ``"n"`` if no batches are joined with rows, or with columns.

    Raises:
        LaunchError: shapes that do not fit.

    Example:
        >>> import numpy as np
        >>> from tilewright.runtime.arrays import describe as info
        >>> a, b, out = np.ones((5, 4, 2, 3)), np.ones((3, 7)), np.empty((5, 4, 2, 7))
        >>> made = problem_of({"a": info(a), "b": info(b), "out": info(out)})
        >>> made.batch, made.m, made.n, made.k
        ((), 40, 7, 3)
    """
    a, b, out = arrays["a"], arrays["b"], arrays["out"]
    shape = result_shape(a.shape, b.shape)
    if out.shape != shape:
        raise LaunchError(f"out has shape {out.shape}, a @ b has {shape}")
    is_row, is_column = len(a.shape) == 1, len(b.shape) == 1
    rank = max(len(a.shape), len(b.shape), 2) - 2
    batch = shape[:rank]
    k, m, n = a.shape[-1], 1 if is_row else a.shape[-2], 1 if is_column else b.shape[-1]
    steps = {}
    for name, info in arrays.items():
        if is_part_of(name, "a"):
            steps[name] = expanded(_matrix(info, 0 if is_row else None), (*batch, m, k))
        elif is_part_of(name, "b"):
            steps[name] = expanded(_matrix(info, 1 if is_column else None), (*batch, k, n))
        elif name not in OTHERS:
            check_broadcast(name, info, shape)
            of_result = list(expanded(info, shape))
            if is_row:
                of_result.insert(rank, 0)
            if is_column:
                of_result.append(0)
            steps[name] = tuple(of_result)
    if "bias" in arrays and arrays["bias"].shape != (n,):
        raise LaunchError(
            f"bias has shape {arrays['bias'].shape}; nearest legal choice: ({n},), one number for each column"
        )
    bias = arrays["bias"].strides if "bias" in arrays else None
    return _joined(batch, (m, n, k), steps, bias, alone)


def posed_with(arrays: Mapping[str, ArrayInfo], wanted: Wanted) -> tuple[Problem, LateTerms]:
    """The problem of the arrays, and the constants of the terms after the activation.

    Dropout needs the number of each element in the result; see `numbered_problem`.

    Args:
        arrays: the arrays for `problem_of`.
        wanted: the other arguments of the call.
    """
    if not wanted.dropped.probability:
        return problem_of(arrays), wanted.late
    problem, order = numbered_problem(arrays)
    return problem, replace(wanted.late, order=order)


def numbered_problem(arrays: Mapping[str, ArrayInfo]) -> tuple[Problem, tuple[int, ...]]:
    """The problem of the arrays, and the dimensions of the result in the order that numbers its elements.

    The numbers of elements are an array of the problem: dimensions are joined only if neighbours have
    neighbouring numbers.

    Args:
        arrays: the arrays for `problem_of`.
    """
    steps, count = list[int](), 1
    for extent in reversed(arrays["out"].shape):
        steps.append(count)
        count *= extent
    problem = problem_of({**arrays, INDEX: replace(arrays["out"], strides=tuple(reversed(steps)))})
    strides = problem.operands[INDEX].strides
    return problem, tuple(sorted(range(len(strides)), key=lambda dim: -strides[dim]))


def is_part_of(name: str, *wholes: str) -> bool:
    """Whether an array is one of the named arrays, or has the dimensions of one: ``a_im`` those of ``a``.

    Example:
        >>> is_part_of("a", "a"), is_part_of("c_im", "c", "out"), is_part_of("out_im", "a")
        (True, True, False)
    """
    return name.partition("_")[0] in wholes


def _matrix(info: ArrayInfo, missing: int | None) -> ArrayInfo:
    """An operand with at least two dimensions; ``missing`` says which one a vector lacks."""
    if missing is None:
        return info
    place = len(info.shape) - 1 + missing
    shape, strides = ((*s[:place], new, *s[place:]) for s, new in ((info.shape, 1), (info.strides, 0)))
    return replace(info, shape=shape, strides=strides)


def expanded(info: ArrayInfo, shape: tuple[int, ...]) -> tuple[int, ...]:
    """The strides of an array that is broadcast to a shape; 0 where there is one element, whatever it was.

    So a single row or column is contiguous along K, and no stride that is never taken keeps bulk copies away.
    """
    missing = len(shape) - len(info.shape)
    known = zip(info.shape, info.strides, shape[missing:], strict=True)
    return (*(0,) * missing, *(step if n == extent > 1 else 0 for n, step, extent in known))


def check_broadcast(name: str, info: ArrayInfo, shape: tuple[int, ...]) -> None:
    """Check that NumPy broadcasts an array to the shape of the result.

    Raises:
        LaunchError: it does not.
    """
    aligned = zip(reversed(info.shape), reversed(shape), strict=False)
    if len(info.shape) > len(shape) or any(n not in (1, extent) for n, extent in aligned):
        raise LaunchError(
            f"{name} has shape {info.shape}, which does not broadcast to the shape of a @ b, {shape}"
        )


# ---------------------------------------------------------------- fewer dimensions


@dataclass(frozen=True)
class Dim:
    """A dimension: its extent, and its stride in each array.

    Args:
        extent: its extent.
        steps: its stride in each array, by name.
    """

    extent: int
    steps: Mapping[str, int]

    def within(self, inner: Dim, names: Sequence[str]) -> Dim | None:
        """This dimension merged with a faster one; None if strides do not allow it."""
        extent = self.extent * inner.extent
        if extent > MOST:
            return None
        if inner.extent == 1:
            return replace(self, steps={**self.steps, **{n: self.steps[n] for n in names}})
        if any(self.steps[name] != inner.extent * inner.steps[name] for name in names):
            return None
        return replace(inner, extent=extent)


def _joined(
    batch: tuple[int, ...],
    extents: tuple[int, int, int],
    steps: Mapping[str, tuple[int, ...]],
    bias: tuple[int, ...] | None,
    alone: str,
) -> Problem:
    m, n, k = extents
    rank = len(batch)
    if 0 in batch:  # there is nothing to compute
        m, batch = 0, (1,) * rank
    dims = [Dim(extent, {name: at[dim] for name, at in steps.items()}) for dim, extent in enumerate(batch)]
    dims = sorted((d for d in dims if d.extent > 1), key=lambda d: -abs(d.steps["out"]))
    rows = Dim(m, {name: at[rank] for name, at in steps.items() if not is_part_of(name, "b")})
    columns = Dim(n, {name: at[rank + 1] for name, at in steps.items() if not is_part_of(name, "a")})
    dims = merged(dims, tuple(steps))
    if alone != "m":
        dims, rows = _absorbed(dims, rows, "b")
    if bias is None and alone != "n":  # which is not repeated for each batch
        dims, columns = _absorbed(dims, columns, "a")
    found = tuple(dim.extent for dim in dims)
    made = {}
    for name in steps:
        down = (rows.extent, rows.steps[name]) if name in rows.steps else (k, steps[name][rank])
        along = (columns.extent, columns.steps[name]) if name in columns.steps else (k, steps[name][rank + 1])
        lead = tuple(dim.steps[name] for dim in dims)
        made[name] = Matrices((*found, down[0], along[0]), (*lead, down[1], along[1]))
    if bias is not None:
        made["bias"] = Matrices((n,), bias)
    return Problem(found, rows.extent, columns.extent, k, made)


def merged(dims: Sequence[Dim], names: Sequence[str]) -> list[Dim]:
    """Dimensions, with neighbours joined if the strides of all arrays allow it.

    Args:
        dims: slowest first.
        names: the arrays.

    Example:
        >>> merged([Dim(4, {"a": 6, "b": 5}), Dim(3, {"a": 2, "b": 7})], ("a",))
        [Dim(extent=12, steps={'a': 2, 'b': 7})]
    """
    made: list[Dim] = []
    for dim in dims:
        both = made[-1].within(dim, names) if made else None
        made[-1:] = [both] if both is not None else [*made[-1:], dim]
    return made


def _absorbed(dims: Sequence[Dim], inner: Dim, without: str) -> tuple[list[Dim], Dim]:
    """Join batches of a broadcast operand with rows (or columns) of the other operand and the result."""
    left = list(dims)
    for dim in reversed(dims):
        if not any(step for name, step in dim.steps.items() if is_part_of(name, without)):
            both = dim.within(inner, tuple(inner.steps))
            if both is not None:
                left.remove(dim)
                inner = Dim(both.extent, {name: both.steps[name] for name in inner.steps})
    return left, inner
