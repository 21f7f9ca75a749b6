"""The machine code of a kernel: its loops, what their instructions are, and what it should be refused for.

`read_isa` reads a compiler's listing for an AMD GPU into an `Isa`: its instructions with their kinds and
widths, its loops, its main loop, the one that multiplies most by matrix instructions, and what the metadata
says that it takes.  `Gates` states what a kernel must keep to; `broken` says which of it a kernel does not.

    made = kernel.compile(*arrays, target="hip", arch="gfx1151")
    isa = read_isa(made.assembly)
    isa.main.mix                           # how many instructions there are of each kind
    isa.main.widths(Kind.SHARED_LOAD)      # loads of shared memory, by bytes of one lane
    isa.main.matrix_per_load               # matrix instructions for each load of global memory
    isa.main.flushes_per_barrier           # instructions that invalidate caches, for each barrier
    isa.resources, isa.limits              # registers, spills, shared memory; warps that each leaves room for
    for one in broken(isa, Gates(warps=6)):
        print(one)                         # which gate, the value, the limit, and the instructions
"""

from tilewright.inspect.isa.gates import Breach, Gates, broken
from tilewright.inspect.isa.instructions import IsaLine, Kind
from tilewright.inspect.isa.loops import Body, Loop
from tilewright.inspect.isa.reading import Isa, read_isa

__all__ = ["Body", "Breach", "Gates", "Isa", "IsaLine", "Kind", "Loop", "broken", "read_isa"]
