"""Products of arrays as products of matrices: NumPy's rules for shapes, with axes merged where strides allow.

`grouped` sorts and joins the axes of all products, for `matmul` and its family (`problem_of`) and for
contractions (`contraction.posed`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import prod

from tilewright.errors import LaunchError
from tilewright.ops.ending import LateTerms
from tilewright.ops.wanted import Wanted
from tilewright.runtime.frameworks import ArrayInfo, row_major

MOST = 2**31 - 1
"""The largest extent that dimensions are joined to."""

INDEX = "index"
"""Name of a pseudo-array: the number of each element of the result, which dropout depends on."""

OTHERS = ("a", "b", "bias")
"""The arrays that are not broadcast to the result."""

IMAGINARY = "_im"
"""Suffix of the name of an array of imaginary parts, with the dimensions of the real parts."""

OF_BLOCKS = "_scales"
"""Suffix of the name of an array of scales with the dimensions of its operand."""


@dataclass(frozen=True)
class MatrixBatch:
    """Extents and strides of an array: as the caller passed it, or as matrices of a problem.

    Args:
        shape: extents: batches first, then rows and columns; the bias has only columns.
        strides: strides of these dimensions, in elements; 0 along broadcast dimensions.
    """

    shape: tuple[int, ...]
    strides: tuple[int, ...]

    def of(self, info: ArrayInfo) -> ArrayInfo:
        """Return an array with these extents and strides."""
        return replace(info, shape=self.shape, strides=self.strides)

    def without(self, *dims: int) -> MatrixBatch:
        """Return the matrices without some dimensions, as kernels take scales and biases.

        Example:
            >>> MatrixBatch((4, 3), (3, 1)).without(-2)
            MatrixBatch(shape=(3,), strides=(1,))
        """
        rank = len(self.shape)
        kept = [dim for dim in range(rank) if dim not in dims and dim - rank not in dims]
        return MatrixBatch(tuple(self.shape[dim] for dim in kept), tuple(self.strides[dim] for dim in kept))


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
    operands: Mapping[str, MatrixBatch]


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
            text = f"{op} of shapes {a} and {b}: {name} has no dimensions, so there is no K to sum along"
            raise LaunchError(text, "a * b")
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


def problem_of(arrays: Mapping[str, MatrixBatch], joined: str = "mn", *, multiplies: bool = True) -> Problem:
    """The problem of the arrays.

    Args:
        arrays: the arrays called ``a``, ``b``, ``out``, and ``bias`` if the call has it, one number for each
            column; all others, e.g. ``c``, are broadcast to the result. An array ``a_...`` or ``b_...``,
            e.g. the imaginary parts ``a_im``, has the shape of that operand.
        joined: whether batches may be joined with rows (``"m"``), with columns (``"n"``), or with both.
        multiplies: whether there are products; otherwise K is 0, for alpha = 0 as in BLAS, and A and B are
            not read.

    Raises:
        LaunchError: shapes that do not fit.

    Example:
        >>> a, b = MatrixBatch((5, 4, 2, 3), (24, 6, 3, 1)), MatrixBatch((3, 7), (7, 1))
        >>> made = problem_of({"a": a, "b": b, "out": MatrixBatch((5, 4, 2, 7), (56, 14, 7, 1))})
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
    for name, one in arrays.items():
        if is_part_of(name, "a"):
            steps[name] = expanded(_matrix(one, 0 if is_row else None), (*batch, m, k))
        elif is_part_of(name, "b"):
            steps[name] = expanded(_matrix(one, 1 if is_column else None), (*batch, k, n))
        elif name not in OTHERS:
            check_broadcast(name, one.shape, shape)
            of_result = list(expanded(one, shape))
            if is_row:
                of_result.insert(rank, 0)
            if is_column:
                of_result.append(0)
            steps[name] = tuple(of_result)
    bias = arrays.get("bias")
    if bias is not None:
        if bias.shape != (n,):
            raise LaunchError(f"bias has shape {bias.shape}", f"({n},), one number for each column")
        joined = joined.replace("n", "")  # the bias is not repeated for each batch
    if 0 in batch:  # there is nothing to compute
        m, batch = 0, (1,) * rank
    dims = [Dim(extent, {name: at[dim] for name, at in steps.items()}) for dim, extent in enumerate(batch)]
    axes = {"batch": [dim for dim in dims if dim.extent > 1]}
    for group, extent in (("m", m), ("n", n), ("k", k if multiplies else 0)):
        places = {name: groups_of(name).find(group) for name in steps}
        own = {name: 0 if at < 0 else steps[name][rank + at] for name, at in places.items()}
        axes[group] = [Dim(extent, own)]
    made = grouped(axes, steps, joined).problem(steps)
    return made if bias is None else replace(made, operands={**made.operands, "bias": bias})


def posed_with(
    arrays: Mapping[str, MatrixBatch], wanted: Wanted, *, multiplies: bool = True
) -> tuple[Problem, LateTerms]:
    """The problem of the arrays, and the constants of the terms after the activation.

    Dropout needs the number of each element in the result; see `numbered_problem`.

    Args:
        arrays: the arrays for `problem_of`.
        wanted: the other arguments of the call.
        multiplies: whether there are products, as for `problem_of`; a plan for alpha = 0 serves no other.
    """
    if not wanted.dropped.probability:
        return problem_of(arrays, multiplies=multiplies), wanted.late
    problem, order = numbered_problem(arrays, multiplies=multiplies)
    return problem, replace(wanted.late, order=order)


def numbered_problem(
    arrays: Mapping[str, MatrixBatch], *, multiplies: bool = True
) -> tuple[Problem, tuple[int, ...]]:
    """The problem of the arrays, and the dimensions of the result in the order that numbers its elements.

    The numbers of elements are an array of the problem: dimensions are joined only if neighbours have
    neighbouring numbers.

    Args:
        arrays: the arrays for `problem_of`.
        multiplies: as in `problem_of`.
    """
    shape = arrays["out"].shape
    problem = problem_of({**arrays, INDEX: MatrixBatch(shape, row_major(shape))}, multiplies=multiplies)
    strides = problem.operands[INDEX].strides
    return problem, tuple(sorted(range(len(strides)), key=lambda dim: -strides[dim]))


def is_part_of(name: str, *wholes: str) -> bool:
    """Whether an array is one of the named arrays, or has the dimensions of one: ``a_im`` those of ``a``.

    Example:
        >>> is_part_of("a", "a"), is_part_of("c_im", "c", "out"), is_part_of("out_im", "a")
        (True, True, False)
    """
    return name.partition("_")[0] in wholes


def _matrix(one: MatrixBatch, missing: int | None) -> MatrixBatch:
    """An operand with at least two dimensions; ``missing`` says which one a vector lacks."""
    if missing is None:
        return one
    place = len(one.shape) - 1 + missing
    shape, strides = ((*s[:place], new, *s[place:]) for s, new in ((one.shape, 1), (one.strides, 0)))
    return MatrixBatch(shape, strides)


def expanded(one: MatrixBatch, shape: tuple[int, ...]) -> tuple[int, ...]:
    """The strides of an array that is broadcast to a shape; 0 along dimensions of one element.

    So a single row or column counts as contiguous along K, and its stride does not rule out bulk copies.
    """
    missing = len(shape) - len(one.shape)
    known = zip(one.shape, one.strides, shape[missing:], strict=True)
    return (*(0,) * missing, *(step if n == extent != 1 else 0 for n, step, extent in known))


def check_broadcast(name: str, own: tuple[int, ...], shape: tuple[int, ...]) -> None:
    """Check that NumPy broadcasts an array to the shape of the result.

    Args:
        name: the array.
        own: its shape.
        shape: the shape of the result.

    Raises:
        LaunchError: it does not.
    """
    aligned = zip(reversed(own), reversed(shape), strict=False)
    if len(own) > len(shape) or any(n not in (1, extent) for n, extent in aligned):
        raise LaunchError(f"{name} has shape {own}, which does not broadcast to the shape of a @ b, {shape}")


# ---------------------------------------------------------------- fewer dimensions

GROUPS = {"a": "mk", "b": "kn"}
"""Groups of the axes of an operand's matrices, rows first; all other arrays have ``"mn"``."""

TILE = {"m": 128, "n": 256}
"""Rows and columns of the tiles that large problems are computed in."""

MOST_WASTE = 1.13
"""Largest factor by which whole tiles may lengthen an axis with separate tiles."""

MOST_WASTE_OF_VIEWS = 1.5
"""The same factor, if an operand would otherwise be seen through a view."""


def groups_of(name: str) -> str:
    """Return the groups of axes that an array's matrices have, rows first.

    Example:
        >>> groups_of("a"), groups_of("b_im"), groups_of("out")
        ('mk', 'kn', 'mn')
    """
    return GROUPS.get(name.partition("_")[0], "mn")


@dataclass(frozen=True)
class Dim:
    """A dimension: its extent, and its stride in each array.

    Args:
        extent: its extent.
        steps: its stride in each array, by name.
        is_moved: whether it consists of batches alone, which may still be joined with rows or columns.
    """

    extent: int
    steps: Mapping[str, int]
    is_moved: bool = field(default=False, repr=False)

    def within(self, inner: Dim, names: Iterable[str]) -> Dim | None:
        """This dimension merged with a faster one; None if strides do not allow it."""
        extent, is_moved = self.extent * inner.extent, self.is_moved and inner.is_moved
        if extent > MOST:
            return None
        if inner.extent == 1:
            return replace(self, is_moved=is_moved)
        if any(self.steps[name] != inner.extent * inner.steps[name] for name in names):
            return None
        return Dim(extent, inner.steps, is_moved)


def merged(dims: Iterable[Dim], names: Iterable[str]) -> list[Dim]:
    """Dimensions, with neighbours joined if the strides of all arrays allow it.

    Args:
        dims: slowest first.
        names: the arrays.

    Example:
        >>> merged([Dim(4, {"a": 6, "b": 5}), Dim(3, {"a": 2, "b": 7})], ("a",))
        [Dim(extent=12, steps={'a': 2, 'b': 7})]
    """
    made, names = list[Dim](), tuple(names)
    for dim in dims:
        both = made[-1].within(dim, names) if made else None
        made[-1:] = [both] if both is not None else [*made[-1:], dim]
    return made


@dataclass(frozen=True)
class Axes:
    """The axes of a product, joined to as few as the strides of all arrays allow.

    Args:
        batch: axes that a kernel takes index by index, slowest first.
        groups: the axes of rows, columns and K by the names ``"m"``, ``"n"`` and ``"k"``, slowest first.  If
            a group has several, kernels read arrays through views.
    """

    batch: tuple[Dim, ...]
    groups: Mapping[str, Sequence[Dim]]

    @property
    def needs_view(self) -> bool:
        """Whether rows, columns or K of an array have several strides."""
        return any(len(dims) > 1 for dims in self.groups.values())

    def problem(self, names: Iterable[str]) -> Problem:
        """Return the product of matrices; no array may need a view.

        Args:
            names: the arrays.
        """
        (m, n, k), batch = (self.groups[group][0] for group in "mnk"), tuple(dim.extent for dim in self.batch)
        operands = {}
        for name in names:
            dims = (*self.batch, *(self.groups[group][0] for group in groups_of(name)))
            shape = tuple(dim.extent for dim in dims)
            operands[name] = MatrixBatch(shape, tuple(dim.steps[name] for dim in dims))
        return Problem(batch, m.extent, n.extent, k.extent, operands)


def grouped(axes: Mapping[str, Sequence[Dim]], names: Iterable[str], joined: str = "mn") -> Axes:
    """Join the axes of a product, and choose those that a kernel takes index by index.

    Axes of the batches along which B repeats are joined with rows, and those along which A repeats with
    columns, if the strides of all arrays allow it.  Outer axes of the rows (or columns) that cannot be joined
    with inner ones become batches if whole tiles of the inner ones waste little.

    Args:
        axes: the axes of ``"batch"``, ``"m"``, ``"n"`` and ``"k"``, each with the strides of all arrays.
        names: the arrays.
        joined: whether batches may be joined with rows (``"m"``), with columns (``"n"``), or with both.
    """
    names = tuple(names)
    of = {part: tuple(name for name in names if is_part_of(name, part)) for part in "ab"}
    results = tuple(name for name in names if not is_part_of(name, "a", "b"))
    found: dict[str, list[Dim]] = {group: list(dims) for group, dims in axes.items()}
    found["batch"] = []
    for dim in axes["batch"]:
        varies = {part: any(dim.steps[name] for name in of[part]) for part in "ab"}
        free = [group for group in joined if not varies["b" if group == "m" else "a"]]
        found[(*free, "batch")[0]].append(replace(dim, is_moved=bool(free)))
    batch = merged(_ordered(found["batch"], ("out",)), names)
    # An operand that is contiguous along an axis of K orders these axes.
    along_k = tuple(name for name in "ab" if any(abs(dim.steps[name]) == 1 for dim in found["k"]))[:1]
    groups = {"k": merged(_ordered(found["k"], along_k), of["a"] + of["b"])}
    for group, part in zip("mn", "ab", strict=True):
        own = of[part] + results
        dims = merged(_ordered(found[group], ("out",)), own)
        batch += [dim for dim in dims if dim.is_moved]
        outer, inner = _cut(merged((dim for dim in dims if not dim.is_moved), own), part, TILE[group])
        batch, groups[group] = batch + outer, inner
    alone = [Dim(1, dict.fromkeys(names, 0))]
    groups = {group: dims or alone for group, dims in groups.items()}
    return Axes(tuple(sorted(batch, key=lambda dim: -abs(dim.steps["out"]))), groups)


def _ordered(dims: Sequence[Dim], by: tuple[str, ...]) -> list[Dim]:
    """Axes of a group, slowest first in the arrays of some names, and then in A and B."""
    return sorted(dims, key=lambda dim: tuple(-abs(dim.steps[name]) for name in (*by, "a", "b")))


def _cut(dims: list[Dim], operand: str, tile: int) -> tuple[list[Dim], list[Dim]]:
    """Split axes into outer ones, with separate tiles for each index, and inner ones, tiled together."""
    waste = MOST_WASTE if len(merged(dims, (operand,))) < 2 else MOST_WASTE_OF_VIEWS
    for place in reversed(range(1, len(dims))):
        inner = prod(dim.extent for dim in dims[place:])
        if inner >= tile and -(-inner // tile) * tile <= waste * inner:
            return dims[:place], dims[place:]
    return [], dims
