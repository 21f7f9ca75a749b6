"""The algebra of members of the GEMM family: their kernels, arrays, and results."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

import tilewright as tw
from tilewright.runtime.kernel import Bound
from tilewright.targets.reference.exponentials import P
from tilewright.targets.reference.residues import MODULO_PRIME, PRIME, Ring

Exact = np.ndarray[Any, Any]
"""Python's integers."""

WRITTEN = ("D", "out", "out_im", "O", "L")
"""What the members' kernels write."""


@dataclass(frozen=True)
class Member:
    """A member of the family.

    Args:
        ways: kernels that are to be the same, by what distinguishes them; the first one has mutants.
        like: specimens of the arrays, and numbers, by parameter.
        want: what they write, by parameter, given the residues of the arrays that are read.
        given: residues that are not random.
        ring: what they are residues of.
    """

    ways: Mapping[str, Bound]
    like: Mapping[str, Any]
    want: Callable[[dict[str, Exact]], dict[str, Exact]]
    given: Mapping[str, Any] = field(default_factory=dict)
    ring: Ring = MODULO_PRIME

    @property
    def modulus(self) -> int:
        """The modulus of all results."""
        return PRIME if self.ring is MODULO_PRIME else P

    def residues(self) -> dict[str, Any]:
        """The residues of all float arrays that are read."""
        arrays = {name: self.like[name] for name in self.like.keys() - {*WRITTEN}}
        arrays = {name: one for name, one in arrays.items() if hasattr(one, "shape")}
        floats = {name: one for name, one in arrays.items() if tw.dtype(one.dtype).is_float}
        return {name: drawn(name, one.shape) for name, one in floats.items()} | dict(self.given)

    def arguments(self, bound: Bound) -> list[Any]:
        """Return specimens and numbers, in the order of a kernel's parameters."""
        return [self.like[one.name] for one in bound.program.parameters if one.name in self.like]

    def polynomial(self) -> dict[str, Exact]:
        """The values that every kernel must write, modulo `modulus`."""
        integers = {name: one for name, one in self.like.items() if isinstance(one, np.ndarray)}
        exact = {name: one.astype(object) for name, one in (integers | self.residues()).items()}
        return {name: one % self.modulus for name, one in self.want(exact).items()}


def drawn(name: str, shape: tuple[int, ...]) -> Any:
    """Return residues that depend only on the name."""
    return np.random.default_rng(zlib.crc32(name.encode())).integers(0, PRIME, shape, np.uint64)


def spec(kind: str, *shape: int, turned: bool = False) -> Any:
    """Return a specimen: row-major, or each matrix column-major."""
    *lead, rows, columns = shape if len(shape) > 1 else (1, *shape)
    inner = (1, rows) if turned else (columns, 1)
    steps = [rows * columns * int(np.prod(lead[at + 1 :])) for at in range(len(lead))]
    return tw.like(kind, *shape, strides=(*steps, *inner)[-len(shape) :])
