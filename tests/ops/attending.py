"""Problems of attention, their results in float64, and error bounds.

The bound of a result is `tilewright.checking.references.attention_room`.
``lse`` is off by what a score is off by, by the relative error of the sum, ``(N + 8) u``, and by the rounding
of its own terms, ``8u`` times the largest score and itself.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

import tilewright as tw
from tilewright.checking.references import attention_room, score_room, softmax_attention
from tilewright.ops.attending.flow import definition

U = tw.f32.unit_roundoff


def beyond(found: Any, error: Any, room: Any) -> str:
    """Return which elements differ by more than their bounds."""
    ratio = np.where(np.isnan(error), np.inf, error / room)
    index = tuple(int(i) for i in np.unravel_index(int(ratio.argmax()), ratio.shape))
    return (
        f"{(ratio > 1).sum()} of {ratio.size} elements are wrong, {np.isnan(found).sum()} are no numbers; "
        f"element {index} is {found[index]}, off by {error[index]:.3g} where {room[index]:.3g} is allowed"
    )


@dataclass
class Problem:
    """Random arrays of one problem.

    Args:
        heads: batches, heads of queries, heads of keys.
        rows: rows of queries, and keys.
        columns: of queries and keys, and of values.
        element: the dtype.
        diagonal: as `tw.attention` takes it; None: not causal.
        scale: likewise; None: the default.
        seed: of the numbers.
        sizes: factors of the queries and of the keys.
        whole: whether queries and keys are small whole numbers times their factors, powers of two: f32 holds
            every score then, and many scores of a row are equal.
    """

    heads: tuple[int, int, int]
    rows: tuple[int, int]
    columns: tuple[int, int]
    element: tw.DType = tw.f16
    diagonal: int | None = None
    scale: float | None = None
    seed: int = 0
    sizes: tuple[float, float] = (1.0, 1.0)
    whole: bool = False
    q: Any = field(init=False)
    k: Any = field(init=False)
    v: Any = field(init=False)

    def __post_init__(self) -> None:
        (b, h, g), (m, n), (d, e) = self.heads, self.rows, self.columns
        rng = np.random.default_rng(self.seed)
        self.q, self.k, self.v = (
            rng.standard_normal(shape).astype(self.element.numpy)
            for shape in ((b, h, m, d), (b, g, n, d), (b, g, n, e))
        )
        for name, factor in zip("qk", self.sizes, strict=True):
            numbers = getattr(self, name).astype(np.float64)
            numbers = (np.rint(numbers) if self.whole else numbers) * factor
            setattr(self, name, numbers.astype(self.element.numpy))

    @property
    def by(self) -> float:
        """The scale."""
        return self.columns[0] ** -0.5 if self.scale is None else self.scale

    @property
    def words(self) -> dict[str, Any]:
        """The arguments besides arrays."""
        found: dict[str, Any] = {} if self.scale is None else {"scale": self.scale}
        return found if self.diagonal is None else found | {"causal": True, "diagonal": self.diagonal}

    def _for_each_head(self, array: Any) -> Any:
        """Repeat heads of keys, so that each head of queries has its own."""
        return np.repeat(array, self.heads[1] // array.shape[1], axis=1)

    def _wide(self, array: Any) -> Any:
        return self._for_each_head(array.astype(np.float64))

    def scores(self) -> Any:
        """Scores in f64; -inf for hidden keys."""
        scores = self.by * (self._wide(self.q) @ self._wide(self.k).swapaxes(-1, -2))
        if self.diagonal is not None:
            scores[..., ~np.tri(*self.rows, self.diagonal, dtype=bool)] = -math.inf
        return scores

    def expected(self) -> Any:
        """The result in f64."""
        return softmax_attention(self.q, self._wide(self.k), self._wide(self.v), self.by, self.diagonal)

    def check(self, found: Any) -> None:
        """Check that every element of the result is within its bound."""
        arrays = (self.q, *map(self._for_each_head, (self.k, self.v)))
        room = attention_room(*arrays, self.by, self.diagonal, exact=self.whole)
        error = np.abs(found.astype(np.float64) - self.expected())
        assert (error <= room).all(), f"{self.name}: {beyond(found, error, room)}"

    @property
    def name(self) -> str:
        """A short description."""
        mask = "" if self.diagonal is None else f", diagonal {self.diagonal}"
        scale = "" if self.scale is None else f", scale {self.scale}"
        sizes = "" if self.sizes == (1, 1) else f", sizes {self.sizes}"
        return f"attention of {self.element}, {self.heads}, {self.rows}, {self.columns}{mask}{scale}{sizes}"

    def without(self, key: int) -> Problem:
        """Return the problem without one of its keys."""
        made = replace(self, rows=(self.rows[0], self.rows[1] - 1))
        made.q, made.k, made.v = self.q, *(np.delete(x, key, axis=2) for x in (self.k, self.v))
        return made

    def check_lse(self, found: Any) -> None:
        """Check that every logarithm is within its bound, and -inf in rows that see no key."""
        scores = self.scores()
        top = scores.max(axis=-1, initial=-math.inf)
        blind = np.isinf(top)
        base = np.where(blind, 0.0, top)
        assert (found[blind] == -math.inf).all(), f"{self.name}: a row that sees no key has a logarithm"
        wanted = base + np.log(np.maximum(np.exp(scores - base[..., None]).sum(axis=-1), blind))
        off = (
            (0 if self.whole else score_room(self.q, self._for_each_head(self.k), self.by)[..., 0])
            + (self.rows[1] + 8) * U
            + 8 * U * (np.abs(base) + np.abs(wanted) + 1)
        )
        error = np.abs(np.where(blind, 0, found).astype(np.float64) - wanted)
        assert (error <= off).all(), f"{self.name}, logarithms: {beyond(found, error, off)}"

    def flow(self) -> dict[str, Any]:
        """Return O and L of the dataflow kernel, with key tiles of 7."""
        (b, h, g), (m, n), (_, e) = self.heads, self.rows, self.columns
        q = self.q.reshape(b, g, h // g, m, -1)
        seen = np.tri(m, n, self.diagonal, dtype=bool) if self.diagonal is not None else np.ones((m, n), bool)
        mask = np.where(seen, 0, -np.inf).astype(np.float32)
        o, lse = np.empty((b, g, h // g, m, e), self.element.numpy), np.empty((b, g, h // g, m), np.float32)
        graph = definition.flow(q, self.k, self.v, mask, o, lse, self.by)
        given = {"Q": q, "K": self.k, "V": self.v, "mask": mask}
        found = tw.ir.evaluate(graph, given, {"scale": self.by}, rounded=False, run=7)
        return {"O": found["O"].reshape(b, h, m, e), "L": found["L"].reshape(b, h, m)}


LENGTHS = (0, 1, 64, 37, 150)


class Padded:
    """Batches with caches of one size.  Each has its own number of keys; the others are NaN.

    Args:
        heads: heads of queries, heads of keys.
        rows: rows of queries.
        columns: of queries and keys, and of values.
        element: the dtype.
        diagonal: as `tw.attention` takes it; None: not causal.
        lengths: the numbers of keys.
        keys: keys of a cache.
    """

    def __init__(
        self,
        heads: tuple[int, int],
        rows: int,
        columns: tuple[int, int],
        element: tw.DType = tw.f16,
        diagonal: int | str | None = None,
        lengths: tuple[int, ...] = LENGTHS,
        keys: int = 150,
    ) -> None:
        self.heads, self.rows, self.columns, self.element = heads, rows, columns, element
        self.diagonal, self.lengths, self.keys = diagonal, np.array(lengths, np.int32), keys
        self.problems = []
        for number, count in enumerate(lengths):
            shift = count - rows if diagonal == "last" else diagonal
            assert not isinstance(shift, str)
            self.problems.append(Problem((1, *heads), (rows, count), columns, element, shift, seed=number))
        self.q = np.concatenate([one.q for one in self.problems])
        self.k, self.v = (self._cache(name) for name in "kv")

    def _cache(self, name: str) -> Any:
        columns = self.columns[name == "v"]
        made = np.full((len(self.lengths), self.heads[1], self.keys, columns), np.nan, self.element.numpy)
        for number, one in enumerate(self.problems):
            made[number, :, : one.rows[1]] = getattr(one, name)[0]
        return made

    @property
    def words(self) -> dict[str, Any]:
        """The arguments besides arrays."""
        return {} if self.diagonal is None else {"causal": True, "diagonal": self.diagonal}

    def poisoned(self) -> tuple[Any, Any]:
        """Return poisoned memory for the result and the logarithms."""
        shape = (*self.q.shape[:3], self.columns[1])
        return np.full(shape, np.nan, self.element.numpy), np.full(shape[:3], np.nan, np.float32)

    def in_pages(self, rows: int) -> tuple[Any, Any, Any]:
        """Return the keys and values in pages of random numbers, and the numbers of each batch.

        Pages that no batch has, and rows beyond the keys of a batch, are NaN; numbers beyond them are -1.

        Args:
            rows: rows of a page.
        """
        used = [-(-int(count) // rows) for count in self.lengths]
        rng, most = np.random.default_rng(rows), -(-self.keys // rows)
        numbers = rng.permutation(sum(used) + 3).astype(np.int32)
        table = np.full((len(used), most), -1, np.int32)
        pools = []
        for cache in (self.k, self.v):
            heads, columns = cache.shape[1], cache.shape[3]
            pool = np.full((len(numbers), rows, heads, columns), np.nan, cache.dtype)
            first = 0
            for b, count in enumerate(used):
                table[b, :count] = numbers[first : first + count]
                whole = np.full((heads, count * rows, columns), np.nan, cache.dtype)
                whole[:, : self.lengths[b]] = cache[b, :, : self.lengths[b]]
                pool[table[b, :count]] = whole.reshape(heads, count, rows, columns).transpose(1, 2, 0, 3)
                first += count
            pools.append(pool)
        return pools[0], pools[1], table

    def check(self, out: Any, lse: Any) -> None:
        """Check that every element is within its bound."""
        for number, one in enumerate(self.problems):
            if not one.rows[1]:
                assert (out[number] == 0).all()
                assert (lse[number] == -math.inf).all()
                continue
            one.check(out[number][None])
            one.check_lse(lse[number][None])


@dataclass
class Packed:
    """Sequences that follow each other, as `tw.attention` takes them with offsets.

    Args:
        heads: heads of queries, heads of keys.
        lengths: rows of queries, and keys, of each sequence.
        columns: of queries and keys, and of values.
        element: the dtype.
        diagonal: as `tw.attention` takes it; None: not causal.
        seed: of the numbers.
        gap: rows of no sequence before the first one, and after the last.
    """

    heads: tuple[int, int]
    lengths: list[tuple[int, int]]
    columns: tuple[int, int]
    element: tw.DType = tw.f16
    diagonal: int | str | None = None
    seed: int = 0
    gap: int = 2

    def __post_init__(self) -> None:
        (h, g), (d, e) = self.heads, self.columns
        rng = np.random.default_rng(self.seed)
        counts = np.cumsum([(self.gap, self.gap), *self.lengths], axis=0)
        self.q_offsets, self.k_offsets = (one.astype(np.int32) for one in counts.T)
        rows, keys = counts[-1] + self.gap
        self.q, self.k, self.v = (
            rng.standard_normal(shape).astype(self.element.numpy)
            for shape in ((rows, h, d), (keys, g, d), (keys, g, e))
        )

    @property
    def words(self) -> dict[str, Any]:
        """The arguments besides arrays."""
        return {} if self.diagonal is None else {"causal": True, "diagonal": self.diagonal}

    def poisoned(self) -> tuple[Any, Any]:
        """Return poisoned memory for the result and the logarithms."""
        shape = (*self.q.shape[:2], self.columns[1])
        return np.full(shape, np.nan, self.element.numpy), np.full(shape[:2], np.nan, np.float32)

    def alone(self, number: int) -> tuple[Problem, slice]:
        """Return one sequence as a separate problem, and its rows in the packed arrays."""
        (h, g), (m, n) = self.heads, self.lengths[number]
        diagonal = n - m if isinstance(self.diagonal, str) else self.diagonal
        made = Problem((1, h, g), (m, n), self.columns, self.element, diagonal)
        rows, keys = (
            slice(int(offsets[number]), int(offsets[number + 1]))
            for offsets in (self.q_offsets, self.k_offsets)
        )
        made.q, made.k, made.v = (
            array[cut].swapaxes(0, 1)[None] for array, cut in ((self.q, rows), (self.k, keys), (self.v, keys))
        )
        return made, rows

    def check(self, out: Any, lse: Any) -> None:
        """Check that every element is within its bound, and that rows of no sequence were not written."""
        of_none = np.ones(len(self.q), bool)
        for number, (m, _) in enumerate(self.lengths):
            problem, rows = self.alone(number)
            of_none[rows] = False
            if m:
                problem.check(out[rows].swapaxes(0, 1)[None])
                problem.check_lse(lse[rows].swapaxes(0, 1)[None])
        assert np.isnan(out[of_none].astype(np.float64)).all()
        assert np.isnan(lse[of_none]).all()
