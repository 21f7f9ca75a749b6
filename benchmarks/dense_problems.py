"""The problems of the dense benchmark, and its kernels of eight lines each."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

import tilewright as tw
from tilewright.errors import LaunchError
from tilewright.runtime.kernel import Bound
from tilewright.schedule.choice import candidates, split_candidates
from tilewright.schedule.question import Candidate, Question, Splitting

How: TypeAlias = tw.Schedule | Splitting | None
"""A schedule; or a way to split K with a chosen schedule; or nothing."""

OURS = "tilewright"


@tw.kernel(A="M K", B="N K", C="M N")
def product(A, B, C):
    """C = A Bᵀ."""
    for m, n in tw.tiles(C):
        acc = tw.zeros()
        for k in tw.steps(A.shape[1]):
            acc += A[m, k] @ B[n, k].T
        C[m, n] = acc


@tw.kernel(A="M K", B="N K", C="M N")
def tf32_product(A, B, C):
    """C = A Bᵀ of f32, multiplied in tf32."""
    for m, n in tw.tiles(C):
        acc = tw.zeros(precision="tf32")
        for k in tw.steps(A.shape[1]):
            acc += A[m, k] @ B[n, k].T
        C[m, n] = acc


@tw.kernel(A="M K", B="N K", bias="N", C="M N")
def bias_gelu(A, B, bias, C):
    """C = gelu(A Bᵀ + bias), with tanh, as cuBLAS computes it."""
    for m, n in tw.tiles(C):
        acc = tw.zeros()
        for k in tw.steps(A.shape[1]):
            acc += A[m, k] @ B[n, k].T
        C[m, n] = tw.gelu(acc + bias[n], approximate=True)


@tw.kernel(A="M K", B="N K", R="M N", C="M N")
def residual(A, B, R, C):
    """C = A Bᵀ + R."""
    for m, n in tw.tiles(C):
        acc = tw.zeros()
        for k in tw.steps(A.shape[1]):
            acc += A[m, k] @ B[n, k].T
        C[m, n] = acc + R[m, n]


@tw.kernel(A="L M K", B="L N K", C="L M N")
def batched(A, B, C):
    """C = A Bᵀ of each batch item."""
    for at, m, n in tw.tiles(C):
        acc = tw.zeros()
        for k in tw.steps(A.shape[2]):
            acc += A[at, m, k] @ B[at, n, k].T
        C[at, m, n] = acc


@tw.kernel(A="T K", B="G N K", ends="G", C="T N")
def grouped(A, B, ends, C):
    """C = A Bᵀ of each group of rows; ``ends`` has the ends of the groups."""
    for g, m, n in tw.tiles(C, groups=ends):
        acc = tw.zeros()
        for k in tw.steps(A.shape[1]):
            acc += A[m, k] @ B[g, n, k].T
        C[m, n] = acc


WRITTEN = (product, tf32_product, bias_gelu, residual, batched, grouped)
KERNELS = {kernel.name: kernel for kernel in WRITTEN}
OUT = {"f8e4m3": "bf16", "i8": "i32"}
"""The dtype of C, if it is not that of A and B."""


@dataclass(frozen=True)
class Group:
    """Rows of the table that have a common minimum and goal.

    Args:
        about: a description.
        floor: minimum of the geometric mean of the speeds relative to the other library.
        goal: goal for this mean.
        none_below: minimum for every single row.
    """

    about: str
    floor: float
    goal: float
    none_below: float | None = None


GROUPS = {
    "half": Group("f16 and bf16, both along K", 1.0, 1.1, 0.97),
    "layouts": Group("bf16, other layouts", 0.97, 1.08),
    "small": Group("bf16, small and flat", 0.97, 1.2, 0.9),
    "ragged": Group("bf16, ragged", 0.87, 1.1),
    "tf32": Group("f32 as tf32", 0.95, 1.1),
    "fp8": Group("f8e4m3, scaled as a whole, to bf16", 0.95, 1.1),
    "int8": Group("i8 to i32", 1.2, 1.7),
    "f32": Group("f32, exact", 0.8, 1.0),
    "f64": Group("f64", 0.9, 1.1),
    "gelu": Group("bf16, + bias, GELU", 1.0, 1.1),
    "residual": Group("bf16, + residual", 1.05, 1.15),
    "few rows": Group("bf16, 1, 16 and 64 rows", 1.0, 1.3, 0.9),
    "by hand": Group("compared with examples/03 with the same schedule", 0.99, 1.0),
    "call": Group("host time of a call, result allocated", 1.0, 1.43),
    "compile": Group("seconds to compile, no cache", 0.6, 0.3),
    "split": Group("f16, deep K", 1.1, 1.6, 0.95),
    "split f32": Group("f32 exact, deep K", 1.0, 1.5),
    "f32 16 rows": Group("f32 exact, 16 rows", 1.3, 2.0),
    "f32 64 rows": Group("f32 exact, 64 rows", 1.05, 1.15),
    "in order": Group("f16, deep K: added in order, over atomics", 0.95, 1.0),
    "invariant few": Group("bf16, few rows: batch-invariant, over the default", 0.7, 0.9),
    "invariant": Group("bf16: batch-invariant, over the default", 0.85, 0.95),
    "grouped": Group("bf16, groups of rows", 1.0, 1.3),
    "batched": Group("bf16, batches", 0.97, 1.15),
    "batched 32": Group("bf16, batches of 32³", 1.5, 2.0),
    "batched 16": Group("bf16, batches of 16³", 4.0, 7.0),
}
"""Groups by name; the floor and goal of ``compile`` are seconds."""

EVERY_SHAPE = (
    *("few rows", "split", "split f32", "f32 16 rows", "f32 64 rows", "in order"),
    *("invariant few", "invariant", "grouped", "batched", "batched 32", "batched 16"),
)
SETS = {
    "dense": tuple(name for name in GROUPS if name not in EVERY_SHAPE[1:]),
    "shapes": EVERY_SHAPE,
    "all": tuple(GROUPS),
}
"""Groups that are measured together."""


@dataclass(frozen=True)
class Problem:
    """One row of the table.

    Args:
        group: its group.
        shape: M, N and K.
        dtype: dtype of A and B.
        layout: storage of A and B, each ``n`` or ``t`` as in BLAS, for row-major arrays.
        kernel: a name of `KERNELS`.
        schedules: schedules by name; None: the chosen one.
        by_hand: whether to measure the hand-written kernel of examples/03 as well.
        seconds: seconds of timing.
        items: number of batch items; 0: no batch.
        beside: the schedule with which ours is compared; empty: the other library.
        sizes: rows of each group, whose sum is in ``shape``; empty: no groups.
        families: whether to measure the first schedule of each proposed family as well; see
            `completed`.
    """

    group: str
    shape: tuple[int, int, int]
    dtype: str = "bf16"
    layout: str = "nt"
    kernel: str = "product"
    schedules: Mapping[str, How] = field(default_factory=lambda: {OURS: None})
    by_hand: bool = False
    seconds: float = 1.0
    items: int = 0
    beside: str = ""
    sizes: tuple[int, ...] = ()
    families: bool = False

    def __str__(self) -> str:
        m, n, k = self.shape
        plain = ("product", "tf32_product", "batched")
        what = "" if self.kernel in plain else f" {self.kernel}"
        if self.sizes:
            kind = "uneven" if len(set(self.sizes)) > 1 else f"{self.sizes[0]} rows"
            what = f" in {len(self.sizes)} groups, {kind}"
        kind = "tf32" if self.kernel == "tf32_product" else self.dtype
        many = f"{self.items} of " if self.items else ""
        return f"{kind} {self.layout} {many}" + (f"{m}³" if m == n == k else f"{m}×{n}×{k}") + what

    @property
    def out(self) -> str:
        """The dtype of C."""
        return OUT.get(self.dtype, self.dtype)

    @property
    def arrays(self) -> list[tuple[str, tuple[int, ...], str]]:
        """Dtype, shape and order (``"C"`` or ``"F"``) of each argument of the kernel."""
        (m, n, k), lead = self.shape, (self.items,) if self.items else ()
        a = (self.dtype, (*lead, m, k), "C" if self.layout[0] == "n" else "F")
        lead_b = (len(self.sizes),) if self.sizes else lead
        b = (self.dtype, (*lead_b, n, k), "C" if self.layout[1] == "t" else "F")
        extra = {
            "bias_gelu": [(self.out, (n,), "C")],
            "residual": [(self.out, (m, n), "C")],
            "grouped": [("i32", (len(self.sizes),), "C")],
        }
        return [a, b, *extra.get(self.kernel, []), (self.out, (*lead, m, n), "C")]

    @property
    def specimens(self) -> list[Any]:
        """Descriptions of the arrays, for compiling."""
        return [tw.like(element, *shape, order=order) for element, shape, order in self.arrays]

    @property
    def distribution(self) -> str:
        """Distribution of the numbers in A and B."""
        return "integers from -100 to 100, uniform" if self.dtype == "i8" else "standard normal"

    def bind(self, name: str) -> Bound:
        """Bind the kernel to one of its schedules."""
        bound: Bound = KERNELS[self.kernel].bind(schedule=self.schedules[name])
        return bound


def hopper(dtype: str, columns: int, **fields: Any) -> tw.Schedule:
    """Return the schedule of examples/03: two warpgroups share a tile of 128 rows."""
    made = {"staging": "tma", "roles": "cooperative", "groups": 2, "blocks": 132, "group_m": 8}
    made |= {"stages": 4, "epilogue": "staged"} | fields
    depth = 128 // tw.dtype(dtype).bytes
    return tw.Schedule(tw.atoms.wgmma(dtype, columns), (128, columns, depth), **made)


def question(problem: Problem) -> Question:
    """Return the question for which schedules are proposed, on the machine of the rows."""
    asked = KERNELS[problem.kernel].bind().question(*problem.specimens, target="cuda", arch="sm_90a")
    assert asked is not None
    return asked


def families(problem: Problem) -> dict[str, list[Candidate]]:
    """Return all legal proposals for a problem, by family, each in the order of the rules."""
    asked = question(problem)
    found = [one for one in candidates(asked) if not one.against]
    with suppress(LaunchError):  # schedules that cannot split K
        found += split_candidates(replace(asked, splitting=Splitting()))
    kinds: dict[str, list[Candidate]] = {}
    once: dict[tw.Schedule, Candidate] = {}
    for one in found:
        once.setdefault(one.schedule, one)
    for one in once.values():
        kinds.setdefault(family_of(one.schedule), []).append(one)
    return kinds


def family_of(schedule: tw.Schedule) -> str:
    """Name the family of a schedule."""
    copies = "bulk copies" if schedule.staging == "tma" else "other copies"
    if schedule.split_k == 1:
        return "few rows" if schedule.swap_ab else copies
    way = schedule.reduction if schedule.reduction_class.shares_tile else schedule.split_k
    return f"few rows, split {way}" if schedule.swap_ab else f"split {way}"


def completed(problem: Problem) -> Problem:
    """Add the first schedule of each family if the problem asks for them; for few rows every form."""
    if not problem.families:
        return problem
    found = {family: proposed[0].schedule for family, proposed in families(problem).items()}
    if problem.group == "few rows":
        found |= {name_of(one): one for one in streaming(question(problem))[1:]}
    return replace(problem, schedules={**problem.schedules, **found})


def streaming(asked: Question) -> list[tw.Schedule]:
    """Return the proposed forms for few rows, the one with the least estimate first."""
    return [one.schedule for one in candidates(asked) if one.schedule.swap_ab]


def name_of(schedule: tw.Schedule) -> str:
    """Name a schedule by its tile."""
    return "swapped " + "x".join(map(str, schedule.tile))


CUBES = {n: (n, n, n) for n in (512, 1024, 2048, 4096, 8192, 16384)}
LAYERS = tuple((8192, n, k) for n, k in ((4096, 4096), (14336, 4096), (4096, 14336), (8192, 28672)))
FEW_ROWS = tuple((m, n, k) for _, n, k in LAYERS for m in (1, 16, 64))
FLAT = tuple((m, n, 4096) for m in (256, 1024) for n in (4096, 14336))
FP8 = {OURS: None, "not promoted": hopper("f8e4m3", 256)}
MAIN = (CUBES[4096], CUBES[8192])
DEEP = (
    *((64, 64, 65536), (16, 16, 262144), (128, 128, 16384), (256, 256, 65536), (32, 4096, 65536)),
    *((512, 512, 32768), (1536, 1536, 12288)),
)
ORDERS: dict[str, How] = {
    OURS: None,  # by default parts of K are added in a fixed order
    "workspace": Splitting("auto", "workspace"),
    "atomic": Splitting("auto", "atomic"),
    "turnstile": Splitting("auto", "turnstile"),
    "cluster": Splitting("auto", "cluster"),
}
INVARIANT: dict[str, How] = {OURS: Splitting(batch_invariant=True), "default": None}
BATCHES = {
    "batched": ((512, 128), (64, 512), (16, 2048)),
    "batched 32": ((1000, 32),),
    "batched 16": ((65536, 16),),
}


def uneven(groups: int, rows: int) -> tuple[int, ...]:
    """Return sizes of groups with a given average: a few groups have most rows, and one has none.

    Example:
        >>> uneven(8, 128)
        (0, 394, 197, 131, 98, 78, 65, 61)
    """
    shares = [0.0, *(1 / at for at in range(1, groups))]
    sizes = [int(groups * rows * share / sum(shares)) for share in shares]
    return (*sizes[:-1], sizes[-1] + groups * rows - sum(sizes))


def grouped_problems() -> Iterator[Problem]:
    """Return problems with groups of equal sizes, and of very different ones."""
    for count in (8, 64):
        for sizes in (*((rows,) * count for rows in (16, 128, 1024)), uneven(count, 128)):
            shape = (sum(sizes), 4096, 4096)
            yield Problem("grouped", shape, kernel="grouped", sizes=sizes, seconds=0.5, families=True)


def every_shape() -> Iterator[Problem]:
    """Return problems of deep K, few rows and batches, compared with a library or another kernel of ours."""
    short: dict[str, Any] = {"seconds": 0.5}
    for shape in DEEP:
        yield Problem("split", shape, "f16", families=True, **short)
    for shape in DEEP:
        yield Problem("split f32", shape, "f32", families=True, **short)
    for rows in (16, 64):
        yield Problem(f"f32 {rows} rows", (rows, 4096, 4096), "f32", families=True, **short)
    for shape in DEEP:
        yield Problem("in order", shape, "f16", schedules=ORDERS, beside="atomic", **short)
    for shape in FEW_ROWS:
        yield Problem("invariant few", shape, schedules=INVARIANT, beside="default", seconds=0.3)
    yield Problem("invariant", CUBES[4096], schedules=INVARIANT, beside="default")
    yield from grouped_problems()
    for group, found in BATCHES.items():
        for items, side in found:
            yield Problem(group, (side, side, side), kernel="batched", items=items, **short)


PROBLEMS = (
    *(Problem("half", shape) for shape in (*MAIN, *LAYERS, CUBES[16384])),
    *(Problem("half", shape, "f16") for shape in (*MAIN, *LAYERS, CUBES[16384])),
    *(Problem("small", shape, seconds=0.5) for shape in (CUBES[512], CUBES[1024], CUBES[2048], *FLAT)),
    *(Problem("ragged", shape) for shape in ((4104, 4088, 4072), (1000, 1000, 1000))),
    *(Problem("gelu", shape, kernel="bias_gelu") for shape in MAIN),
    *(Problem("residual", shape, kernel="residual") for shape in MAIN),
    *(
        Problem("layouts", shape, layout=layout)
        for layout in ("nn", "tn", "tt")
        for shape in (*MAIN, LAYERS[1])
    ),
    *(Problem("fp8", shape, "f8e4m3", schedules=FP8) for shape in MAIN),
    *(Problem("tf32", shape, "f32", kernel="tf32_product") for shape in MAIN),
    *(Problem("int8", shape, "i8") for shape in MAIN),
    *(Problem("f32", shape, "f32") for shape in (CUBES[2048], CUBES[4096])),
    *(Problem("f64", CUBES[n], "f64", layout) for n in (1024, 2048, 4096, 8192) for layout in ("nt", "nn")),
    *(Problem("few rows", shape, seconds=0.5, families=True) for shape in FEW_ROWS),
    *(Problem("by hand", shape, schedules={OURS: hopper("bf16", 256)}, by_hand=True) for shape in MAIN),
    *every_shape(),
)
"""All problems, in the order of measurement."""
