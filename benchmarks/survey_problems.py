"""The problems of the survey: parts with a stated distribution each, drawn by a seed.

A part draws its problems one after the other from its own stream of random numbers.  Fewer problems of a part
are therefore a prefix of more, and other parts change nothing.  Only ``Random.random`` is used, whose numbers
are the same in every version of Python.

"Log-uniform" means that the logarithm of an extent is uniform.  A draw beyond `MOST_BYTES`, or beyond the
operations of its part, is drawn again, and so is a problem that the part has already.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from random import Random
from typing import Any

from tilewright.dtypes import dtype

MOST_BYTES = 4 << 30
"""Bytes of the arrays of one problem, at most."""

LAYOUTS = ("nn", "nt", "tn", "tt")
ROWS = tuple(1 << at for at in range(14))
"""Rows of the products of language models: 1 to 8192 tokens."""

LAYERS = (
    *((6144, 4096), (4096, 4096), (28672, 4096), (4096, 14336), (128256, 4096)),  # Llama 3 8B
    *((10240, 8192), (8192, 8192), (57344, 8192), (8192, 28672)),  # Llama 3 70B
    *((4608, 3584), (3584, 3584), (37888, 3584), (3584, 18944)),  # Qwen 2.5 7B
    *((7168, 5120), (5120, 5120), (55296, 5120), (5120, 27648)),  # Qwen 2.5 32B
    *((1536, 7168), (24576, 1536), (7168, 16384), (7168, 18432), (4096, 7168), (7168, 2048)),  # DeepSeek V3
    (129280, 7168),
    *((8192, 3584), (3584, 4096), (28672, 3584), (3584, 14336)),  # Gemma 2 9B
    *((9216, 3072), (3072, 3072), (16384, 3072), (3072, 8192)),  # Phi 3 mini
    *((4800, 1600), (1600, 1600), (6400, 1600), (1600, 6400)),  # GPT 2 XL
)
"""N and K of the layers of published models: projections of attention, both halves of MLPs, vocabularies."""

EXPERTS = ((4096, 7168), (7168, 2048), (2816, 2048), (2048, 1408), (28672, 4096), (4096, 14336))
"""N and K of the experts of published models: DeepSeek V3, DeepSeek MoE, Mixtral."""


CLASSES = (
    *((1e7, "under 10⁷ operations"), (1e9, "10⁷ to 10⁹ operations"), (1e10, "10⁹ to 10¹⁰ operations")),
    (math.inf, "from 10¹⁰ operations on"),
)
"""Classes of aligned problems, and the number of operations that each does not reach."""


@dataclass(frozen=True)
class SurveyProblem:
    """One call.

    Args:
        part: its part.
        op: ``"matmul"``; ``"mixed"``, f16 by f8e4m3 with a scale for each column; ``"scaled"``, f8e4m3 by
            f8e4m3 with a scale for each row and column; ``"grouped"``, ``"attention"`` or ``"chain"``.
        dtype: dtype of A, or of all arrays.
        shape: M, N, K; of attention batches, heads, heads of keys, queries, keys, and the depth of a head; of
            a chain M, N, K, P.
        layout: storage of A and B, a letter each: ``n`` row after row, ``t`` column after column.
        items: number of batch items; 0: no batch.
        precision: the precision of `matmul`.
        sizes: rows of each group; empty: no groups.
        causal: whether attention has a causal mask.
        activation: the activation of a chain.
    """

    part: str
    op: str
    dtype: str
    shape: tuple[int, ...]
    layout: str = "nn"
    items: int = 0
    precision: str = "exact"
    sizes: tuple[int, ...] = ()
    causal: bool = False
    activation: str | None = None

    def __str__(self) -> str:
        kind = self.dtype if self.precision == "exact" else f"{self.dtype} as {self.precision}"
        extents = "×".join(map(str, self.shape))
        if self.op == "attention":
            return f"attention {kind} {extents}" + (" causal" if self.causal else "")
        if self.op == "chain":
            return f"chain {kind} {extents}" + (f" {self.activation}" if self.activation else "")
        words = {"mixed": f"{kind} × f8e4m3", "scaled": f"{kind} by rows"}.get(self.op, kind)
        many = f" {self.items} of" if self.items else ""
        groups = f" in {len(self.sizes)} groups" if self.sizes else ""
        return f"{words} {self.layout}{many} {extents}{groups}"

    @property
    def out_dtype(self) -> str:
        """The dtype of the result."""
        return {"scaled": "bf16"}.get(self.op, self.dtype)

    @property
    def flops(self) -> int:
        """Operations; under a causal mask only those of visible keys."""
        if self.op == "attention":
            batch, heads, _, queries, keys, depth = self.shape
            seen = queries * keys if not self.causal else sum(min(i + 1, keys) for i in range(queries))
            return 4 * batch * heads * seen * depth
        if self.op == "chain":
            m, n, k, p = self.shape
            return 2 * m * n * (k + p)
        m, n, k = self.shape
        each = 8 if dtype(self.dtype).components == 2 else 2
        return each * m * n * k * max(self.items, 1)

    @property
    def bytes(self) -> int:
        """Bytes of all arrays, once each."""
        size, out = (dtype(name).bits / 8 for name in (self.dtype, self.out_dtype))
        if self.op == "attention":
            batch, heads, shared, queries, keys, depth = self.shape
            return int(2 * size * batch * depth * (heads * queries + shared * keys))
        if self.op == "chain":
            m, n, k, p = self.shape
            return int(size * (m * k + k * n + n * p + m * p))
        (m, n, k), many = self.shape, max(self.items, 1)
        of_b = k * n * (len(self.sizes) or 1) * (1 if self.op in ("mixed", "scaled") else size)
        return int(many * (m * k * size + of_b + m * n * out))

    @property
    def column(self) -> str:
        """The class within its part for which the summary has a line; "" for none."""
        if self.part == "language models":
            return f"M = {self.shape[0]}"
        if self.part == "aligned":
            return next(name for most, name in CLASSES if self.flops < most)
        if self.part == "vectors":
            m, n, _ = self.shape
            kinds = {(True, True): "dot products", (True, False): "rows", (False, True): "columns"}
            return kinds.get((m == 1, n == 1), "outer products")
        return ""

    def record(self) -> dict[str, Any]:
        """Return the problem in JSON's types."""
        return asdict(self)

    @staticmethod
    def read(found: dict[str, Any]) -> SurveyProblem:
        """Return the problem of a record."""
        fields = {name: tuple(one) if isinstance(one, list) else one for name, one in found.items()}
        return SurveyProblem(**fields)


# ---------------------------------------------------------------- random numbers


def log_uniform(rng: Random, low: float, high: float) -> int:
    """Draw a whole number from low to high, whose logarithm is uniform."""
    return min(int(low * (high / low) ** rng.random() + 0.5), int(high))


def pick(rng: Random, values: Sequence[Any]) -> Any:
    """Draw one of some values, all equally likely."""
    return values[int(rng.random() * len(values))]


def aligned(rng: Random, low: int, high: int, unit: int = 8) -> int:
    """Draw a multiple of a unit, log-uniform."""
    return unit * log_uniform(rng, low / unit, high / unit)


def any_shape(rng: Random, low: int, high: int) -> tuple[int, int, int]:
    """Draw three extents, log-uniform, that are not all multiples of 8."""
    while True:
        m, n, k = (log_uniform(rng, low, high) for _ in range(3))
        if m % 8 or n % 8 or k % 8:
            return m, n, k


def half(rng: Random) -> str:
    """Draw f16 or bf16."""
    return "f16" if rng.random() < 0.5 else "bf16"


# ---------------------------------------------------------------- parts

Draw = Callable[[Random, int], SurveyProblem]
"""Draws a problem; the number is that of the draw within its part."""


@dataclass(frozen=True)
class Part:
    """Problems of one distribution.

    Args:
        about: the distribution, in words.
        count: problems of a survey.
        draw: draws one.
        floor: minimum of the geometric mean, of the tenth percentile, and of every speed over the peer's;
            None: no minimum.
        goal: goal for the geometric mean.
        each_class: whether the floor holds for each class of the part.
        target: the target.
        most_flops: most operations of a problem.
        least_flops: fewest operations of a problem.
    """

    about: str
    count: int
    draw: Draw
    floor: tuple[float | None, float | None, float | None]
    goal: float
    each_class: bool = False
    target: str = "cuda"
    most_flops: float = 4e12
    least_flops: float = 0


def language_models(rng: Random, at: int) -> SurveyProblem:
    n, k = pick(rng, LAYERS)
    return SurveyProblem("language models", "matmul", "bf16", (ROWS[at % len(ROWS)], n, k), "nt")


def with_layout(
    part: str, shape: Callable[[Random], tuple[int, ...]], kind: Callable[[Random], str], **more: Any
) -> Draw:
    """Return a draw of a product with any layout."""

    def draw(rng: Random, _: int) -> SurveyProblem:
        return SurveyProblem(part, "matmul", kind(rng), shape(rng), pick(rng, LAYOUTS), **more)

    return draw


def three_aligned(low: int, high: int) -> Callable[[Random], tuple[int, ...]]:
    """Return a draw of three multiples of 8."""
    return lambda rng: tuple(aligned(rng, low, high) for _ in range(3))


def deep(part: str, kind: str) -> Draw:
    """Return a draw of a deep product, contiguous along K."""

    def draw(rng: Random, _: int) -> SurveyProblem:
        m, n = (aligned(rng, 16, 1536, 16) for _ in range(2))
        return SurveyProblem(
            part, "matmul", kind, (m, n, aligned(rng, max(8192, 8 * m, 8 * n), 262144)), "nt"
        )

    return draw


def batches(part: str, kind: Callable[[Random], str], high: int, most_items: int) -> Draw:
    """Return a draw of batches, half of them with multiples of 8, some with one row."""

    def draw(rng: Random, _: int) -> SurveyProblem:
        items, one_row = log_uniform(rng, 2, most_items), rng.random() < 0.2
        m, n, k = (
            aligned(rng, 8, high) if rng.random() < 0.7 else log_uniform(rng, 1, high) for _ in range(3)
        )
        shape = (1 if one_row else m, n, k)
        return SurveyProblem(part, "matmul", kind(rng), shape, pick(rng, LAYOUTS), items)

    return draw


def vectors(rng: Random, at: int) -> SurveyProblem:
    """Draw one row, one column, both, or K = 1; one in four in a batch."""
    big = log_uniform(rng, 64, 1 << 23)
    m, n, k = (log_uniform(rng, 16, 16384) for _ in range(3))
    shape = ((1, n, k), (m, 1, k), (1, 1, big), (m, n, 1))[at % 4]
    items = log_uniform(rng, 2, 64) if rng.random() < 0.25 else 0
    kind = pick(rng, ("f16", "bf16", "f32"))
    return SurveyProblem("vectors", "matmul", kind, shape, pick(rng, LAYOUTS), items)


def mixed(rng: Random, _: int) -> SurveyProblem:
    n, k = pick(rng, LAYERS)
    return SurveyProblem("f16 × fp8", "mixed", "f16", (aligned(rng, 128, 4096), n, k), "nt")


def scaled(rng: Random, _: int) -> SurveyProblem:
    n, k = pick(rng, LAYERS)
    return SurveyProblem("fp8 by rows", "scaled", "f8e4m3", (log_uniform(rng, 1, 8192), n, k), "nt")


def groups(rng: Random, _: int) -> SurveyProblem:
    """Draw groups with shares of the rows that are exponentially distributed."""
    (n, k), count, rows = pick(rng, EXPERTS), pick(rng, (8, 16, 32, 64)), log_uniform(rng, 1, 1024)
    shares = [-math.log(1 - rng.random()) for _ in range(count)]
    sizes = [int(count * rows * share / sum(shares)) for share in shares]
    sizes[-1] += count * rows - sum(sizes)
    return SurveyProblem("groups", "grouped", "bf16", (count * rows, n, k), "nt", sizes=tuple(sizes))


def heads_of_keys(rng: Random, heads: int) -> int:
    """Draw the heads of keys: as many as queries have, or a quarter, or an eighth."""
    return max(heads // pick(rng, (1, 4, 8)), 1)


def prefill(rng: Random, _: int) -> SurveyProblem:
    batch, heads, depth = (
        pick(rng, (1, 2, 4, 8)),
        pick(rng, (8, 16, 32)),
        pick(rng, (64, 64, 96, 128, 128, 256)),
    )
    length, is_causal = aligned(rng, 512, 16384), rng.random() < 0.5
    shape = (batch, heads, heads_of_keys(rng, heads), length, length, depth)
    return SurveyProblem("attention, prefill", "attention", half(rng), shape, causal=is_causal)


def decode(rng: Random, _: int) -> SurveyProblem:
    batch, heads, depth = log_uniform(rng, 1, 64), pick(rng, (16, 32, 64)), pick(rng, (64, 128))
    keys = log_uniform(rng, 512, 131072)
    shape = (batch, heads, heads_of_keys(rng, heads), 1, keys, depth)
    return SurveyProblem("attention, decode", "attention", half(rng), shape)


def many_heads(rng: Random, _: int) -> SurveyProblem:
    batch, heads, depth = pick(rng, (8, 16, 32, 64)), pick(rng, (16, 32, 64)), pick(rng, (64, 128))
    length = log_uniform(rng, 64, 1024)
    shape = (batch, heads, heads, length, length, depth)
    return SurveyProblem("attention, many heads", "attention", half(rng), shape, causal=rng.random() < 0.5)


def chains(rng: Random, at: int) -> SurveyProblem:
    """Draw a chain; of every other one the outer extents fit into one kernel."""
    most = 256 if at % 2 else 4096
    m, n = aligned(rng, 256, 32768), aligned(rng, 64, 4096)
    k, p = aligned(rng, 32, most), aligned(rng, 32, most)
    return SurveyProblem("chains", "chain", half(rng), (m, n, k, p), activation=pick(rng, (None, "relu")))


def on_processors(part: str, kind: str) -> Draw:
    """Return a draw for processors: half of the problems with multiples of 8."""

    def draw(rng: Random, at: int) -> SurveyProblem:
        shape = three_aligned(8, 4096)(rng) if at % 2 else any_shape(rng, 1, 4096)
        return SurveyProblem(part, "matmul", kind, shape, pick(rng, LAYOUTS))

    return draw


def host_vectors(rng: Random, at: int) -> SurveyProblem:
    wide, deep_ = log_uniform(rng, 256, 4096), log_uniform(rng, 256, 4096)
    shape = (1, wide, deep_) if at % 2 else (wide, 1, deep_)
    return SurveyProblem("CPU vectors", "matmul", pick(rng, ("f32", "f64")), shape, pick(rng, LAYOUTS))


HOST: dict[str, Any] = {"target": "cpu", "least_flops": 1e5, "most_flops": 2e10}
F32 = (0.97, None, None)
PARTS: dict[str, Part] = {
    "language models": Part(
        "bf16 NT, M a power of 2 from 1 to 8192 in turn, N and K of published models",
        140, language_models, (1.00, 0.95, 0.90), 1.08, each_class=True,
    ),
    "aligned": Part(
        "f16, bf16, all layouts; multiples of 8 from 8 to 10,000, log-uniform",
        160, with_layout("aligned", three_aligned(8, 10000), half), (1.00, 0.90, 0.75), 1.10,
    ),
    "odd, small": Part(
        "f16, bf16, all layouts; 1 to 10,000, log-uniform, not all multiples of 8; under 10⁹ operations",
        100, with_layout("odd, small", lambda rng: any_shape(rng, 1, 10000), half), (0.95, 0.80, 0.60), 1.2,
        most_flops=1e9,
    ),
    "odd, large": Part(
        "the same from 10⁹ operations on",
        100, with_layout("odd, large", lambda rng: any_shape(rng, 1, 10000), half), (1.7, 1.0, 0.85), 2.5,
        least_flops=1e9,
    ),
    "deep K f16": Part(
        "f16 NT, M and N multiples of 16 from 16 to 1536, K from 8192 and 8 times both to 262,144",
        40, deep("deep K f16", "f16"), (1.05, 0.95, 0.90), 1.5,
    ),
    "deep K f32": Part(
        "the same in f32, exact", 24, deep("deep K f32", "f32"), (1.3, 1.0, 0.97), 1.5, most_flops=4e11
    ),
    "vectors": Part(
        "f16, bf16, f32, all layouts: one row, one column, dot and outer products, one in four in a batch",
        64, vectors, (1.0, 0.9, 0.8), 1.3,
    ),
    "f32": Part(
        "f32 exact, all layouts; multiples of 8 from 128 to 8192, log-uniform",
        40, with_layout("f32", three_aligned(128, 8192), lambda _: "f32"), F32, 1.05, most_flops=1.2e12,
    ),
    "f32 batches": Part(
        "f32 exact, all layouts; 2 to 256 items, up to 1024", 16,
        batches("f32 batches", lambda _: "f32", 1024, 256), (1.0, None, None), 1.05, most_flops=4e11,
    ),
    "complex64": Part(
        "complex64 exact, all layouts; multiples of 8 from 64 to 4096, log-uniform",
        24, with_layout("complex64", three_aligned(64, 4096), lambda _: "c64"), (0.95, None, None), 1.05,
        most_flops=6e11,
    ),
    "complex64 batches": Part(
        "complex64 exact, all layouts; 2 to 256 items, up to 512", 16,
        batches("complex64 batches", lambda _: "c64", 512, 256), (1.0, None, None), 1.05, most_flops=2e11,
    ),
    "tf32": Part(
        "f32 as tf32, all layouts; multiples of 8 from 128 to 8192, log-uniform", 40,
        with_layout("tf32", three_aligned(128, 8192), lambda _: "f32", precision="tf32"), F32, 1.1,
    ),
    "f16 × fp8": Part(
        "f16 by fp8 weights with a scale for each column; multiples of 8 from 128 to 4096 rows, N and K of "
        "published models; the peer multiplies by f16 weights",
        32, mixed, (0.97, None, None), 1.1,
    ),
    "fp8 by rows": Part(
        "fp8 by fp8 with a scale for each row and column; 1 to 8192 rows, N and K of published models",
        32, scaled, (0.95, None, None), 1.1,
    ),
    "batches": Part(
        "f16, bf16, all layouts; 2 to 1024 items, up to 2048, one in five of one row", 48,
        batches("batches", half, 2048, 1024), (0.97, None, None), 1.15, most_flops=1e12,
    ),
    "groups": Part(
        "bf16; 8 to 64 groups of exponentially distributed sizes, in the mean of 1 to 1024 rows; N and K of "
        "experts of published models",
        24, groups, (1.0, None, None), 1.3,
    ),
    "attention, prefill": Part(
        "f16, bf16, depth 64 to 256; as many queries as keys, 512 to 16,384; half of them causal",
        32, prefill, (1.0, None, None), 1.1,
    ),
    "attention, decode": Part(
        "f16, bf16, depth 64 or 128; one query, 512 to 131,072 keys, 1 to 64 items",
        24, decode, (1.0, None, None), 1.1,
    ),
    "attention, many heads": Part(
        "f16, bf16, depth 64 or 128; 8 to 64 items of 16 to 64 heads, 64 to 1024 queries and keys",
        16, many_heads, (1.0, None, None), 1.1,
    ),
    "chains": Part(
        "f16, bf16: A B C with and without relu; of every other one K and P are at most 256",
        16, chains, (1.0, None, None), 1.1,
    ),
    "CPU f32": Part(
        "f32, all layouts; 1 to 4096, log-uniform, every other one multiples of 8; from 10⁵ operations on",
        40, on_processors("CPU f32", "f32"), (1.0, 0.85, 0.7), 1.1, **HOST,
    ),
    "CPU f64": Part(
        "the same in f64", 32, on_processors("CPU f64", "f64"), (1.0, 0.85, 0.7), 1.1, **HOST
    ),
    "CPU vectors": Part(
        "f32, f64: one row or one column, 256 to 4096, log-uniform",
        16, host_vectors, (1.0, 0.85, 0.7), 1.1, **HOST,
    ),
    "CPU complex64": Part(
        "the same as CPU f32 in complex64",
        24, on_processors("CPU complex64", "c64"), (0.95, None, None), 1.1, **HOST,
    ),
    "CPU f16": Part(
        "the same in f16, compared with our own f32",
        12, on_processors("CPU f16", "f16"), (1.0, None, None), 1.1, **HOST,
    ),
    "CPU bf16": Part(
        "the same in bf16, compared with our own f32",
        12, on_processors("CPU bf16", "bf16"), (1.0, None, None), 1.1, **HOST,
    ),
}  # fmt: skip
"""All parts, by name."""


def drawn(part: str, seed: str) -> Iterator[SurveyProblem]:
    """Yield the problems of a part, without end and without repetition.

    Args:
        part: its name.
        seed: hexadecimal digits.

    Example:
        >>> from itertools import islice
        >>> [str(one) for one in islice(drawn("deep K f16", "0123abcd"), 2)]
        ['f16 nt 144×1056×34416', 'f16 nt 464×1024×76608']
    """
    about, rng = PARTS[part], Random(f"{int(seed, 16):x} {part}")
    seen, at = set[SurveyProblem](), 0
    while True:
        one = about.draw(rng, at)
        fits = about.least_flops <= one.flops < about.most_flops and one.bytes <= MOST_BYTES
        if fits and one not in seen:
            seen.add(one)
            at += 1
            yield one


def survey(seed: str, parts: Sequence[str], per_part: int | None = None) -> list[SurveyProblem]:
    """Return the problems of a survey, the parts interleaved: a survey that is cut short has some of each.

    Args:
        seed: hexadecimal digits.
        parts: names of parts.
        per_part: most problems of a part; None: as many as the part says.
    """
    found: list[tuple[float, int, SurveyProblem]] = []
    for number, part in enumerate(parts):
        count = min(PARTS[part].count, per_part or PARTS[part].count)
        problems = drawn(part, seed)
        found += [((at + 0.5) / count, number, next(problems)) for at in range(count)]
    once: dict[SurveyProblem, SurveyProblem] = {}
    for _, _, one in sorted(found, key=lambda row: row[:2]):
        once.setdefault(replace(one, part=""), one)
    return [*once.values()]
