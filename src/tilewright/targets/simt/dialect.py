"""The record of a vendor's C++, which the rules of `simt` use to write one thread's program."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from functools import cached_property

from tilewright.functions.formulas import Pieces
from tilewright.ir.mma import MmaAtom
from tilewright.targets.dialect import Dialect

WORDS = {2: "unsigned short", 4: "unsigned", 8: "uint2", 16: "uint4"}
"""Types of one access, by bytes; vector types may be pieces of the prelude."""

THREAD = "tid"
"""The variable that holds the thread's index in its block, or in its role."""

SHARED_MEMORY = "shared_memory"
"""The block's one buffer of shared memory."""


@dataclass(frozen=True)
class TextFunction:
    """A function of the text.

    Args:
        name: its name.
        text: its definition, qualified by ``DEVICE``.
    """

    name: str
    text: str


@dataclass(frozen=True)
class PairFunction:
    """A function of two neighbouring numbers at once.

    Args:
        function: a piece of the prelude; it takes the addresses of two results and of two numbers.
        feature: the feature that the architecture must have; empty for none.
    """

    function: str
    feature: str = ""


def no_instruction(atom: MmaAtom) -> TextFunction | None:
    """Return None: all atoms of the dialect are multiply-adds."""
    return None


@dataclass(frozen=True, kw_only=True)
class SimtDialect(Dialect):
    """One vendor's spelling.  Rules fill in the fields ``{}`` and ``{name}`` of a form.

    Args:
        pieces: groups of pieces of text that a kernel may need before it, each by the name that it defines;
            see `tilewright.targets.simt.prelude` for their placeholders.
        built_in: names that the compiler declares, so that no variable may have them.
        words: the type of an access, by bytes.
        floats: the type that stores several f32 in one access, by count; others use ``words``.
        align: attribute of a declaration that is aligned to ``{}`` bytes.
        float_of: start of a call that reinterprets bits as a float.
        bits_of: start of a call that reinterprets a float as bits.
        not_a_number: a NaN.
        infinity: the positive infinity.
        kernel: start of a kernel's declaration, with its ``{bounds}`` and its name, ``{entry}``.
        bounds: attribute of a kernel of ``{threads}`` per block.
        bounds_resident: the same, if a multiprocessor runs ``{resident}`` blocks at once; empty if the vendor
            has no such attribute.
        cluster: attribute of a kernel in clusters of ``{}`` blocks; empty without clusters.
        tensor_map: the type of a bulk copy's tensor map; empty without bulk copies.
        passed: declaration of a parameter that is a struct, with its type and name.
        thread: the thread's index in its block.
        block: the block's index along axis ``{}``.
        member: the function that returns the block's index in its cluster along axis ``{}``.
        shared: declaration of ``{bytes}`` of shared memory, ``{name}``, aligned to ``{align}`` bytes.
        uniform: the function that makes a value that all lanes of a warp share known as uniform.
        asks_whole_warps: whether the branch of a role must be uniform in a warp: barriers that count warps
            would also count inactive lanes of other roles.
        barrier: the function at which all threads of the block wait for each other.
        barrier_of_shared: the same, if only shared memory needs an order; empty for ``barrier``.
        warp_barrier: the function at which the lanes of a warp wait for each other.
        exchange: the function that returns the value of the lane whose number differs in some bits.
        exchanging: its arguments before the value and the bits.
        load_if: the function that loads from global memory, or returns zeros if an element does not exist.
        load_part: the same for one f64 of an interleaved pair in shared memory.  It prevents a joint load of
            the pair, whose parts would need moves.  Empty if the compiler decides.
        prefetched: the function that keeps the loads of a prefetch before the multiplies that follow, if the
            compiler would move them; empty if it does not.
        anew: the function that hides how an integer was computed, so that conditions of lanes are not kept in
            scalar registers for long; empty if conditions are not in scalar registers.
        instruction: returns the function that executes an atom on the first registers of C, A and B; None if
            the atom is spelled as multiply-adds.
        pairs: conversions of two numbers at once, by source and target dtype.
        rounding: the function that rounds a float to an atom's fraction bits, by these bits.
    """

    pieces: tuple[Mapping[str, str], ...] = field(repr=False, hash=False)
    built_in: frozenset[str] = frozenset()
    words: Mapping[int, str] = field(default_factory=lambda: WORDS, hash=False)
    floats: Mapping[int, str] = field(default_factory=dict, hash=False)
    align: str
    float_of: str
    bits_of: str
    not_a_number: str
    infinity: str
    kernel: str
    bounds: str
    bounds_resident: str = ""
    cluster: str = ""
    tensor_map: str = ""
    passed: str = "const {} {}"
    thread: str
    block: str
    member: str = ""
    shared: str
    uniform: str
    asks_whole_warps: bool = False
    barrier: str
    barrier_of_shared: str = ""
    warp_barrier: str
    exchange: str
    exchanging: tuple[str, ...] = ()
    load_if: str = "load_if"
    load_part: str = ""
    prefetched: str = ""
    anew: str = ""
    instruction: Callable[[MmaAtom], TextFunction | None] = no_instruction
    pairs: Mapping[tuple[str, str], PairFunction] = field(default_factory=dict, hash=False)
    rounding: Mapping[int, str] = field(default_factory=dict, hash=False)

    def __post_init__(self) -> None:
        """Reserve the names that pieces define."""
        own = {name for group in self.pieces for name in group}
        object.__setattr__(self, "reserved", self.reserved | own | self.built_in | {THREAD, SHARED_MEMORY})

    def qualified(self, piece: str) -> str:
        """Return a piece with its placeholders filled in."""
        for word, spelled in (
            ("DEVICE", self.function),
            ("ALIGN(4)", self.align.format(4)),
            ("NOT_A_NUMBER", self.not_a_number),
            ("FLOAT_OF(", self.float_of),
            ("BITS_OF(", self.bits_of),
        ):
            piece = piece.replace(word, spelled)
        return piece.strip()

    @cached_property
    def prelude(self) -> Mapping[str, str]:
        """Every piece by the name that it defines."""
        return {name: self.qualified(text) for group in self.pieces for name, text in group.items()}

    @cached_property
    def _known(self) -> Pieces:
        return Pieces({name: text for group in self.pieces for name, text in group.items()})

    def before(self, names: Collection[str], written: Mapping[str, str]) -> list[str]:
        """Return the pieces that a text with these names needs, in order, then its own functions."""
        functions = (self.qualified(text) for name, text in written.items() if name in names)
        return [*(self.prelude[name] for name in self._known.needed(names)), *functions]
