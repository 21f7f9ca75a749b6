"""The record of a vendor's C++, from which the rules of `simt` write one thread's program."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from functools import cached_property

from tilewright.ir.mma import MmaAtom
from tilewright.targets.dialect import Dialect

WORDS = {2: "unsigned short", 4: "unsigned", 8: "uint2", 16: "uint4"}
"""Types that move a number of bytes in one access; vector types are pieces of text."""

THREAD = "tid"
"""The variable that holds the thread's index in its block, or in its role."""

SHARED_MEMORY = "shared_memory"
"""The block's one buffer of shared memory."""


@dataclass(frozen=True)
class TextFunction:
    """A function of the text.

    Args:
        name: what it is called.
        text: its definition, qualified by ``DEVICE``.
    """

    name: str
    text: str


@dataclass(frozen=True)
class PairFunction:
    """A function of two neighbouring numbers at once.

    Args:
        function: a piece of the prelude, of where two results go and where the numbers are.
        feature: what the machine must have; empty if each has it.
    """

    function: str
    feature: str = ""


def no_instruction(atom: MmaAtom) -> TextFunction | None:
    """Of a dialect whose atoms are all multiply-adds."""
    return None


@dataclass(frozen=True, kw_only=True)
class SimtDialect(Dialect):
    """One vendor's spelling.  A place ``{}`` in a form, or one with a name, is filled in by the rule.

    Args:
        pieces: groups of pieces of text that a kernel may need before it, each by the name that it defines;
            see `tilewright.targets.simt.prelude` for the words that stand in them.
        needs: the pieces that a piece names, if it names some.
        built_in: what the compiler knows without a declaration, and no variable may be called.
        words: the type for accesses, by bytes.
        floats: the type that stores several f32 in one access, by count; others use ``words``.
        align: attribute of a declaration that is aligned to ``{}`` bytes.
        float_of: how the float of some bits begins, up to these.
        bits_of: how the bits of a float begin.
        not_a_number: a float that is none.
        infinity: the float beyond all others.
        kernel: the beginning of a kernel's declaration: of its ``{bounds}`` and its name, ``{entry}``.
        bounds: attribute of a kernel of ``{threads}`` per block.
        bounds_alone: the same where a block has a multiprocessor to itself; empty if there is no such thing.
        cluster: attribute of a kernel in clusters of ``{}`` blocks; empty if there are none.
        tensor_map: the type of what a bulk copy must know of an array; empty if there are no such copies.
        passed: how a parameter that is a record is passed by value, of its type and its name.
        thread: the thread's index in its block.
        block: the block's index along axis ``{}``.
        member: the function that gives the block's index in its cluster along axis ``{}``.
        shared: declares shared memory: ``{name}``, aligned to ``{align}`` bytes, of ``{bytes}``.
        uniform: the function that gives what all lanes of a warp have, as something that all of them have.
        asks_whole_warps: whether who executes a role is asked of whole warps.  Lanes that are switched off
            would pass the barriers of a role that is not theirs, where barriers count warps.
        barrier: the function by which all threads of the block wait for each other.
        barrier_of_shared: the same where only accesses to shared memory need an order; empty: no other one.
        warp_barrier: the function by which the lanes of a warp do.
        exchange: the function that gives the value of the lane whose number differs in some bits.
        exchanging: its arguments before the value and the bits.
        load_if: the function that loads from global memory what exists, or zeros.
        load_part: the same of an f64 in shared memory beside the other part of a number, of which it makes a
            load of its own, for what one load brings must be moved apart; empty: the compiler decides.
        prefetched: the function that keeps the loads of a prefetch before the multiplies behind it, if the
            compiler would move them there; empty if it does not.
        anew: the function that gives an integer which is computed with anew at this place, so that conditions
            of lanes are not kept for long in scalar registers; empty where they lie in no such ones.
        instruction: the function that executes an atom, of the first registers of C, A and B; None if it has
            no instruction, and is spelled as multiply-adds.
        pairs: conversions of two numbers at once, by the dtypes from which and to which.
        rounding: the function that rounds a float to an atom's fraction bits, by these.
    """

    pieces: tuple[Mapping[str, str], ...] = field(repr=False, hash=False)
    needs: Mapping[str, tuple[str, ...]] = field(repr=False, hash=False)
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
    bounds_alone: str = ""
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
        """Everything that a piece defines is reserved."""
        own = {name for group in self.pieces for name in group}
        object.__setattr__(self, "reserved", self.reserved | own | self.built_in | {THREAD, SHARED_MEMORY})

    def qualified(self, piece: str) -> str:
        """A piece in the words of this dialect."""
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

    def before(self, names: Collection[str], written: Mapping[str, str]) -> list[str]:
        """The pieces that a text which uses these names needs, in order, and the functions written for it."""
        needed: set[str] = set()
        wanted = list(names)
        while wanted:
            name = wanted.pop()
            if name in self.prelude and name not in needed:
                needed.add(name)
                wanted += self.needs.get(name, ())
        functions = (self.qualified(text) for name, text in written.items() if name in names)
        return [*(piece for name, piece in self.prelude.items() if name in needed), *functions]
