"""The class `Schedule`: how the hardware computes a dataflow kernel."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from functools import cached_property, lru_cache
from typing import Any, TypeAlias

from tilewright.argument_checks import Count, is_integer, is_whole, legal, one_of
from tilewright.calls import Signature, is_constant, launches
from tilewright.errors import LaunchError, LayoutError, close_to, shown
from tilewright.ir.mma import MmaAtom, TiledMma
from tilewright.layout.limits import COPIES, STAGES, WARPS
from tilewright.symbolic.nodes import hashed_once
from tilewright.targets.atoms import spelled

BYPASSES = ("", "a", "b", "ab")
"""Operands that bypass shared memory, from global memory into the registers of the multiplication."""

DIMS = ("", "m", "n", "k", "mn", "mk", "nk", "mnk")
"""Subsets of the dimensions M, N and K."""

ROLES = ("none", "cooperative", "ping-pong", "alternating")
"""How the warps of a block share its work.

``"none"``: all warps do the same.  ``"cooperative"``: one warp copies (four with ``staging="mixed"``), and
groups of warps multiply a tile together.  ``"ping-pong"``: likewise, but each group multiplies its own tile
while another one stores.  ``"alternating"``: two groups share the rows of a tile and alternate at each step
along K: one multiplies from registers while the other one loads.
"""

FOLDS = ("online", "two passes", "kept")
"""How reductions of a whole row become loops; see the field `fold`."""

SPLITS = ("auto", "stream")
"""Ways to split K, besides a number of parts.

``"auto"``: into as many parts as give each block that runs at once a part.  ``"stream"``: the steps of all
tiles form one sequence, which is divided into equal shares for the blocks; a share may begin and end within a
tile.
"""


Staging: TypeAlias = str
Bypass: TypeAlias = str
Turned: TypeAlias = str
Dims: TypeAlias = str
Roles: TypeAlias = str
EpiloguePath: TypeAlias = str
Reduction: TypeAlias = str
SplitK: TypeAlias = int | str
Fold: TypeAlias = str
Natural: TypeAlias = int
legal("Bypass", *one_of(BYPASSES))
legal("Turned", *one_of(BYPASSES))
legal("Dims", *one_of(DIMS))
legal("Roles", *one_of(ROLES))
legal("Fold", *one_of(FOLDS))
legal(
    "SplitK",
    f"an integer of at least 1, {' or '.join(map(repr, SPLITS))}",
    f"integers of at least 1, {' and '.join(map(repr, SPLITS))}",
    lambda value: value in SPLITS if isinstance(value, str) else is_whole(value) and value >= 1,
)
legal(
    "Natural",
    "an integer of at least 0",
    "integers of at least 0",
    lambda value: is_integer(value) and not (is_whole(value) and value < 0),
)


# ---------------------------------------------------------------- strategies that a schedule names


class StagingTraits:
    """Facts of a staging on which other fields of a schedule depend."""

    by_bulk = False
    """Whether a producer role fills the ring by bulk copies."""

    copies_too = False
    """Whether threads of the producer role copy the operands that bulk copies do not carry."""

    in_background = False
    """Whether threads issue asynchronous copies, and later wait for their own."""

    through_registers = False
    """Whether the next tile waits in registers: operands may bypass shared memory, or be transposed."""

    alternates = False
    """Whether the staging serves ``roles="alternating"``: groups that alternately load and multiply."""

    by_parts = False
    """Whether each step is multiplied part by part, from registers that are filled one part ahead."""

    splits_steps = False
    """Whether groups without roles share the steps of a tile along K."""


class EpilogueTraits:
    """Facts of an epilogue on which other fields of a schedule depend."""

    is_buffered = False
    """Whether results pass through shared memory."""

    hands_over = False
    """Whether separate warps store the results of the multiplying warps."""

    without_helpers = ""
    """Name of the epilogue with the same buffers whose multiplying warps store; empty: itself."""


class ReductionTraits:
    """Facts of a reduction on which other fields of a schedule depend."""

    in_cluster = False
    """Whether the blocks of a tile's parts are a cluster."""

    shares_tile = False
    """Whether each block with a part of K stores a share of the tile."""

    waits = False
    """Whether all blocks of a tile wait for each other, so that a GPU must run all blocks at once."""

    takes_buffers = True
    """Whether the epilogue may be buffered; narrow shares of a tile are stored from registers."""

    is_ordered = True
    """Whether parts are added in one order, so that repeated runs have the same bits."""


STAGINGS: dict[str, type[StagingTraits]] = {}
"""The stagings by the names of the field `staging`; see `resources.STAGING_CLASSES`."""

EPILOGUES: dict[str, type[EpilogueTraits]] = {}
"""The epilogues by the names of the field `epilogue`; see `resources.EPILOGUE_CLASSES`."""

REDUCTIONS: dict[str, type[ReductionTraits]] = {}
"""The reductions of split K by the names of the field `reduction`; see `resources.REDUCTION_CLASSES`."""


_tiled = lru_cache(maxsize=1024)(TiledMma)
"""Cached, because the candidates of a choice have the same few tiles."""


def declare(
    stagings: Mapping[str, type[StagingTraits]],
    epilogues: Mapping[str, type[EpilogueTraits]],
    reductions: Mapping[str, type[ReductionTraits]],
) -> None:
    """Make strategies known by name.  Their classes are in files above this one, and so are the tables."""
    STAGINGS.update(stagings)
    EPILOGUES.update(epilogues)
    REDUCTIONS.update(reductions)
    for field, names in (("Staging", stagings), ("EpiloguePath", epilogues), ("Reduction", reductions)):
        legal(field, *one_of(tuple(names)))


@launches(stages=STAGES, groups=WARPS, unroll=COPIES)
@hashed_once
@dataclass(frozen=True, repr=False)
class Schedule:
    """How the hardware computes ``C = epilogue(sum over K of A @ B)``: instruction, tile, warps, staging.

    A schedule is checked for a kernel, its arrays and an architecture before anything is compiled.  If it is
    not legal, the error has every reason.

    Args:
        atom: the instruction that multiplies.  For a kernel without a product, a multiply-add: its map of
            sums decides which elements of a tile each lane has.
        tile: extents (m, n, k) of the tile of a block, or of each group if groups have their own tiles; ``k``
            is the depth of the tiles of A and B that are copied at once.
        warps: number of warps (warpgroups with ``wgmma``) along the rows and along the columns of a group's
            tile.
        interleaved: whether warps take turns at the atoms of a tile; see `TiledMma`.  A staged epilogue
            without roles then stores the tile in slices of its columns.
        stages: number of stages of the ring: tiles of A, and of B, in shared memory.
        staging: one of ``"direct"``, ``"panels"``, ``"double"``, ``"registers"``, ``"cp_async"``,
            ``"fragments"``, ``"tma"``, ``"mixed"``.  With ``"mixed"``, bulk copies load one operand, as with
            ``"tma"``, and threads of the copying warps load the other, if bulk copies do not carry it, such
            as chosen rows.
        roles: one of ``"none"``, ``"cooperative"``, ``"ping-pong"``, ``"alternating"``; see `ROLES`.
        groups: number of groups of warps that multiply.  Cooperative groups share the rows of a tile.
            Ping-pong groups take a tile each; two alternating groups share one.  Without roles, with
            ``staging="fragments"``, groups share a tile along K: each has a part of it and its own ring, and
            their sums are added up in shared memory, in the order of the parts.
        balanced: whether blocks have equal shares of the rows and columns, each at most a tile; otherwise all
            tiles but the last have the extents of ``tile``.
        blocks: largest number of blocks of a persistent grid, in which each block computes one tile after the
            other; a launch has as many blocks as finish together.  0: a block for each tile.
        cluster: number of blocks along M, which share B, and along N, which share A, by multicast copies.
        group_m: rows of tiles in a band that is traversed column by column; 0: the order of the grid.
        group_n: columns of tiles in a band that is traversed row by row, instead.
        promote: number of tiles along K after which sums are added to sums of full precision; 0: never.  With
            1, an asynchronous atom with fewer columns than the tile multiplies one slice of columns after
            another, and all slices use the same accumulators before they are promoted.
        epilogue: one of ``"direct"``, ``"staged"``, ``"overlapped"``.
        buffers: number of buffers of each group in a staged or overlapped epilogue.
        registers: number of registers of each thread that multiplies, if another role copies; 0: the compiler
            chooses.
        swap_ab: whether to compute the transposed product ``C^T = B^T @ A^T``, with the same elements: the
            columns of B lie along the rows of the atom, and the rows of A along its columns.  This suits few
            rows of A, because an atom may have as few as 8 columns.  All other fields then describe the
            transposed product: ``tile`` is (n, m, k) of the original product, and ``warps``, ``groups``,
            ``cluster``, ``group_m`` and ``group_n`` change likewise.
        split_k: number of parts of K, each for a block; or ``"auto"`` or ``"stream"`` (see `SPLITS`), with a
            number of ``blocks`` that run at once.  The epilogue runs once, with the sums of all parts.
            A loop that carries a state is split by a number or ``"auto"``, if states of parts merge.
        reduction: how the sums of the parts are added up: ``"workspace"``, ``"reduce-scatter"``,
            ``"turnstile"``, ``"atomic"``, ``"cluster"``; see `REDUCTIONS`.  If `matmul` is asked to split K
            without a reduction, it chooses the fastest of those with a fixed order.
        bypass: operands that go from global memory to the registers of the multiplication without shared
            memory: ``""``, ``"a"``, ``"b"`` or ``"ab"``; with ``staging="registers"``.  It pays if no two
            warps multiply the same rows of the operand, because each warp reads them for itself.
        k1: neighbours along K of A, and of B, that stay together in shared memory: the layout of a tile is
            (K0, rows, K1) with K1 fastest, for any layout of the array; 0: the layout of the array.
        extra_rows: number of unused rows of K1 elements between two K0 of A, and of B.  With one unused row,
            neighbouring K0 are in different banks.
        dealt: threads along the rows and along K that copy a tile of A, and those that copy a tile of B.
            Each thread copies a contiguous part, and neighbouring threads are neighbours along the contiguous
            dimension of the array.  0: all threads copy, in as few sectors as the array allows.
        turned: operands that are contiguous along their rows in memory, but have K1 neighbours along K in
            shared memory: ``""``, ``"a"``, ``"b"`` or ``"ab"``; with ``staging="registers"`` and ``dealt`` of
            the operand.  Threads read along the rows, as wide as the array allows, and transpose their parts
            in registers.  An operand that is contiguous along K is not transposed.
        batches: number of batch items for which a block computes the same tile, one after the other.
        whole: dimensions that are multiples of the tile's extents, some of ``"mnk"``.  Accesses along them
            have no bounds checks, and a launch with another extent is refused.
        unroll: number of tiles along K in each turn of the main loop of the multiplying warps.  The compiler
            copies the body of the loop, so that it can interleave the end of one tile with the beginning of
            the next.
        across: whether results that are reduced along rows or columns, and stored along one dimension, are
            reduced across tiles: each tile writes its part, and the last block to arrive reduces all parts in
            the order of the tiles.  Otherwise one tile must cover the whole row, or column.
        prefetch: whether arrays that the epilogue reads are loaded while the last product of a tile runs.
        width: columns of the result in a tile of a loop that carries a state, e.g. those of the values of
            attention; 0: the result has none.  ``tile`` is then (rows, elements of the loop in one step,
            depth of the products inside of a step).  For products of products: columns of an inner product,
            such as ``X A`` in ``X W + (X A) B``, in a tile; they cover the extent.
        resident: whether an operand that is the same in all steps, e.g. the queries of attention, stays in
            shared memory; the depth of the tile covers it.
        fold: how the reductions of a whole row become loops.  ``"online"``: as few loops as possible; sums of
            powers of an extreme are rescaled in each step, and factors that are the same along the row are
            applied after the loop.  ``"two passes"``: a first loop computes these factors, such as the sum of
            the weights of a softmax, and a second loop multiplies the normalised values.  ``"kept"``: for
            results along the row, as softmax(X W).  Each block has one step of the loop, and keeps its values
            in registers.  With ``split_k=1`` the step is the whole row.  With ``split_k="auto"`` the blocks
            of a row exchange their sums and extremes, and each stores its own part; ``blocks`` blocks run at
            the same time.

    Raises:
        LaunchError: a field has an illegal value, e.g. an unknown name, or stages below 1.

    Example:
        >>> import tilewright as tw
        >>> tw.Schedule(tw.atoms.MMA_F16, (128, 128, 32), warps=(2, 2), stages=3, staging="cp_async")
        tw.Schedule(tw.atoms.MMA_F16, (128, 128, 32), warps=(2, 2), stages=3, staging="cp_async")
        >>> schedule = tw.Schedule(
        ...     tw.atoms.wgmma("bf16", 256), (128, 256, 64), stages=4, staging="tma", roles="cooperative",
        ...     groups=2, blocks=132, group_m=8, epilogue="staged",
        ... )
        >>> eval(repr(schedule)) == schedule
        True

        If A has few rows, 16 here, and B many columns, the columns fill the atom:

        >>> tw.Schedule(
        ...     tw.atoms.wgmma("bf16", 16), (64, 16, 256), stages=5, staging="tma", roles="cooperative",
        ...     epilogue="staged", registers=0, swap_ab=True,
        ... ).mma.tile
        (64, 16, 16)
    """

    atom: MmaAtom
    tile: tuple[int, int, int]
    warps: tuple[Count, Count] = (1, 1)
    stages: Count = 1
    staging: Staging = "direct"
    roles: Roles = "none"
    groups: Count = 1
    balanced: bool = False
    blocks: Natural = 0
    cluster: tuple[Count, Count] = (1, 1)
    group_m: Natural = 0
    group_n: Natural = 0
    promote: Natural = 0
    epilogue: EpiloguePath = "direct"
    buffers: Count = 2
    registers: Natural = 232
    swap_ab: bool = False
    split_k: SplitK = 1
    reduction: Reduction = "workspace"
    bypass: Bypass = ""
    k1: tuple[Natural, Natural] = (0, 0)
    extra_rows: tuple[Natural, Natural] = (0, 0)
    dealt: tuple[tuple[Natural, Natural], tuple[Natural, Natural]] = ((0, 0), (0, 0))
    turned: Turned = ""
    batches: Count = 1
    across: bool = False
    whole: Dims = ""
    interleaved: bool = False
    unroll: Count = 1
    prefetch: bool = True
    width: Natural = 0
    resident: bool = False
    fold: Fold = "online"

    def __post_init__(self) -> None:
        _, *plain = vars(self).values()
        if is_constant(tuple(plain)):  # no field is converted
            return
        for name in ("tile", "warps", "cluster", "k1", "extra_rows"):
            if not is_constant(extents := getattr(self, name)):
                object.__setattr__(self, name, tuple(int(extent) for extent in extents))
        if not is_constant(self.dealt):
            dealt = tuple((int(along_rows), int(along_k)) for along_rows, along_k in self.dealt)
            object.__setattr__(self, "dealt", dealt)
        for name, value in vars(self).items():
            if type(value) is not int and is_whole(value):
                object.__setattr__(self, name, int(value))

    @cached_property
    def mma(self) -> TiledMma:
        """The tiled MMA of one group of warps.

        Raises:
            LayoutError: the tile is not made of whole atoms of each warp of each group.
        """
        (m, n, _), groups = self.tile, self.cooperating
        if m % groups:
            text = f"{groups} groups cannot share the {m} rows of a tile equally"
            raise LayoutError(text, f"{-(-m // groups) * groups} rows")
        return _tiled(self.atom, self.warps, tile=(m // groups, n), interleaved=self.interleaved)

    @property
    def staging_class(self) -> type[StagingTraits]:
        """The class of the staging."""
        return STAGINGS[self.staging]

    @property
    def epilogue_class(self) -> type[EpilogueTraits]:
        """The class of the epilogue."""
        return EPILOGUES[self.epilogue]

    @property
    def epilogue_without_helpers(self) -> str:
        """Name of the epilogue with the same buffers whose multiplying warps store."""
        return self.epilogue_class.without_helpers or self.epilogue

    @property
    def reduction_class(self) -> type[ReductionTraits]:
        """The class of the reduction of split K, also if K is not split."""
        return REDUCTIONS[self.reduction]

    @property
    def by_bulk(self) -> bool:
        """Whether a producer role fills the ring by bulk copies."""
        return self.staging_class.by_bulk

    @property
    def copies_in_background(self) -> bool:
        """Whether threads issue asynchronous copies, and later wait for their own."""
        return self.staging_class.in_background

    @property
    def alternates(self) -> bool:
        """Whether groups share the rows of a tile, and alternately load and multiply its steps along K."""
        return self.roles == "alternating" and self.staging_class.alternates

    @property
    def stores_by_groups(self) -> bool:
        """Whether each group of warps stores its own tile, with its own barriers and bulk copies."""
        return self.roles != "none" and not self.alternates

    @property
    def cooperating(self) -> int:
        """Groups that share the rows of a tile."""
        return self.groups if self.roles == "cooperative" or self.alternates else 1

    @property
    def storing_groups(self) -> int:
        """Groups of warps that store, each with its own buffers."""
        return self.groups if self.stores_by_groups else self.cooperating

    @property
    def sharing(self) -> int:
        """Groups whose rows of A lie in one stage side by side; 0: one group, or a stage for each."""
        shared = self.alternates or (self.by_bulk and self.roles != "ping-pong")
        return self.groups if shared else 0

    @property
    def along_k(self) -> int:
        """Groups that share the steps of a tile along K."""
        return self.groups if self.roles == "none" and self.staging_class.splits_steps else 1

    @property
    def is_split(self) -> bool:
        """Whether K is split."""
        return self.split_k != 1

    @property
    def is_streamed(self) -> bool:
        """Whether the steps of all tiles are dealt out to the blocks in equal shares."""
        return self.split_k == "stream"

    @property
    def is_clustered(self) -> bool:
        """Whether the blocks of a tile's parts of K are a cluster."""
        return self.is_split and self.reduction_class.in_cluster

    @property
    def has_shares(self) -> bool:
        """Whether all blocks of a tile's parts of K store, each a share of the tile."""
        return self.is_split and self.reduction_class.shares_tile

    @property
    def block_k(self) -> int:
        """Depth along K of the tiles of A and B that are copied at once."""
        return self.tile[2]

    @launches
    def spelled(self, field: str) -> str:
        """The value of a field as an author writes it."""
        names = [one.name for one in fields(self)]
        if field not in names:
            raise LaunchError(
                f"Schedule.spelled(field={shown(field)}): a Schedule has the fields {', '.join(names)}"
                f"{close_to(field, names)}"
            )
        value = getattr(self, field)
        if isinstance(value, MmaAtom):
            return spelled(value)
        return f'"{value}"' if isinstance(value, str) else repr(value)

    def __repr__(self) -> str:
        said = []
        for field in fields(self):
            if field.name in ("atom", "tile"):
                said.append(self.spelled(field.name))
            elif getattr(self, field.name) != field.default:
                said.append(f"{field.name}={self.spelled(field.name)}")
        return f"tw.Schedule({', '.join(said)})"


_SIGNATURE: Signature = Schedule.__init__.signature  # type: ignore[attr-defined]


def changed(schedule: Schedule, **fields: Any) -> Schedule:
    """`dataclasses.replace` for a schedule; it checks and converts these fields only.

    Example:
        >>> from tilewright.targets.atoms import MMA_F16
        >>> changed(Schedule(MMA_F16, (128, 128, 32)), stages=3)
        tw.Schedule(tw.atoms.MMA_F16, (128, 128, 32), stages=3)
    """
    known = {name: value for name, value in vars(schedule).items() if name in Schedule.__dataclass_fields__}
    is_plain = fields.keys() <= known.keys() and is_constant(tuple(fields.values()))
    if not is_plain or _SIGNATURE.wrong((), fields) is not None:
        return replace(schedule, **fields)
    made = object.__new__(Schedule)
    vars(made).update(known, **fields)
    return made
