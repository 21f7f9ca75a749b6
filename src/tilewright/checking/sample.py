"""Matrices to multiply: random numbers, small integers, and measurements of a landscape."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from tilewright.calls import launches
from tilewright.dtypes import DType
from tilewright.dtypes import dtype as dtype_named
from tilewright.errors import DTypeError, LaunchError, ToolchainError

Array = npt.NDArray[Any]

INITS = ("random", "integers", "elevation")
"""The contents of matrices that `operands` can make."""

_LARGEST = 4
"""Largest integer of ``"integers"``: every dtype holds it, and sums stay exact."""
_KILOMETRES = ("f16", "bf16", "f8e4m3", "f8e5m2")
"""Dtypes whose range needs elevations in kilometres, so that products and sums do not overflow."""


@dataclass(frozen=True)
class Operands:
    """Matrices A (M, K) and B (K, N).

    Args:
        a: A.
        b: B.
        about: their contents, in words.
    """

    a: Array
    b: Array
    about: str

    @property
    def shape(self) -> tuple[int, int, int]:
        """Extents (M, N, K)."""
        return (self.a.shape[0], self.b.shape[1], self.a.shape[1])

    def stored(self, layout: str) -> Operands:
        """Return the same matrices in other layouts: ``"n"`` row by row, ``"t"`` column by column."""
        return replace(self, a=laid_out(self.a, layout[0]), b=laid_out(self.b, layout[1]))


@launches
def operands(
    init: str,
    dtype: DType,
    shape: tuple[int, int, int] | None = None,
    *,
    seed: int = 0,
    layout: str | None = None,
) -> Operands:
    """Make operands ``a (M, K)`` and ``b (K, N)``, filled with the numbers that ``init`` names.

    Args:
        init: ``"random"``: normal numbers of mean 0 and deviation 1 (for integers of deviation 20);
            ``"integers"``: whole numbers from -4 to 4, whose products and sums are exact;
            ``"elevation"``: heights of a landscape, and their transpose, so that ``a @ b`` is the Gram matrix
            of its profiles.
        dtype: element type.
        shape: extents (M, N, K); None for ``"elevation"``, which has its own.
        seed: seed of the random numbers.
        layout: how A and B are stored, a letter for each: ``"n"`` row after row, ``"t"`` column after column;
            default: row after row, and the transposed elevations column after column.

    Raises:
        LaunchError: ``init`` is unknown, or the extents are missing, or given for the elevations.
        DTypeError: the dtype cannot hold the numbers.
        ToolchainError: the package with the measurements is not installed.

    Example:
        >>> from tilewright.dtypes import f16
        >>> made = operands("integers", f16, (2, 3, 4))
        >>> made.a.shape, made.b.shape, made.b.dtype
        ((2, 4), (4, 3), dtype('float16'))
    """
    dtype = dtype_named(dtype)
    if init == "elevation":
        if shape is not None:
            raise LaunchError("the elevations have their own shape; leave M N K out, or choose another init")
        return elevation(dtype).stored(layout or "nt")
    if init not in INITS:
        raise LaunchError(f"unknown init {init!r}; choose one of {', '.join(INITS)}")
    if shape is None:
        raise LaunchError(f"init {init!r} needs the extents M N K")
    m, n, k = shape
    if least := next((extent for extent in shape if extent < 0), None):
        raise LaunchError(f"an extent of {least} in shape={tuple(shape)}", "0")
    if seed < 0:
        raise LaunchError(f"seed={seed}", "0")
    rng = np.random.default_rng(seed)
    fill = normal if init == "random" else _integers
    words = "normal random numbers" if init == "random" else f"integers from -{_LARGEST} to {_LARGEST}"
    try:
        made = Operands(fill(rng, (m, k), dtype), fill(rng, (k, n), dtype), f"{words}, seed {seed}")
    except MemoryError as error:
        raise LaunchError(f"operands of shape={tuple(shape)}: {error}", "smaller extents") from None
    return made.stored(layout or "nn")


def elevation(dtype: DType) -> Operands:
    """Return 344 profiles of 403 heights as ``a``, and ``b = a.T`` in memory of its own.

    A library would compute half of the product of an array and a view of it, which is symmetric.

    The landscape is the Jacksboro fault, a digital elevation model among matplotlib's sample data.  Heights
    are in metres; in kilometres for 16- and 8-bit floats, and in decametres for 8-bit integers, as metres
    would exceed their range.

    Args:
        dtype: element type.

    Raises:
        DTypeError: the dtype holds no real numbers.
        ToolchainError: matplotlib is not installed.
    """
    if dtype.components > 1 or dtype.kind == "bool":
        raise DTypeError(f"elevations are real numbers; no {dtype}")
    try:
        import matplotlib.cbook
    except ImportError:
        raise ToolchainError(
            "the elevations ship with matplotlib; install it with `pip install 'tilewright[plot]'`"
        ) from None
    path = matplotlib.cbook.get_sample_data("jacksboro_fault_dem.npz", asfileobj=False)
    with np.load(path) as archive:
        metres: npt.NDArray[np.float64] = np.asarray(archive["elevation"], np.float64)
    if dtype.name in _KILOMETRES:
        heights, unit = (metres / 1000).astype(dtype.numpy), "kilometres"
    elif dtype.bits == 8:
        heights, unit = np.rint(metres / 10).astype(dtype.numpy), "decametres"
    else:
        heights, unit = metres.astype(dtype.numpy), "metres"
    rows, columns = heights.shape
    about = f"elevations in {unit}: {rows} profiles of {columns} measured heights, and their transpose"
    return Operands(heights, heights.copy().T, about)


def normal(rng: np.random.Generator, shape: tuple[int, ...], dtype: DType) -> Array:
    """Return normal numbers of mean 0 and deviation 1; integers of deviation 20; for booleans, their signs.

    Args:
        rng: the random generator.
        shape: shape of the array.
        dtype: element type.

    Example:
        >>> from tilewright.dtypes import i8
        >>> normal(np.random.default_rng(0), (2, 3), i8).dtype
        dtype('int8')
    """
    if dtype.components > 1:
        return rng.standard_normal((*shape, 2)).view(np.complex128)[..., 0].astype(dtype.numpy)
    numbers = rng.standard_normal(shape)
    if dtype.kind == "bool":
        return numbers > 0
    if dtype.is_float:
        return numbers.astype(dtype.numpy)
    limits = np.iinfo(dtype.numpy)
    return np.clip(np.rint(20 * numbers), limits.min, limits.max).astype(dtype.numpy)


def laid_out(array: Array, letter: str) -> Array:
    """Return the same matrix, stored row after row (``"n"``) or column after column (``"t"``).

    Example:
        >>> laid_out(np.zeros((2, 3)), "t").strides
        (8, 16)
    """
    return np.asarray(array, order="C" if letter == "n" else "F")


def _integers(rng: np.random.Generator, shape: tuple[int, int], dtype: DType) -> Array:
    low = 0 if dtype.kind in ("uint", "bool") else -_LARGEST
    return rng.integers(low, _LARGEST + 1, shape).astype(dtype.numpy)
