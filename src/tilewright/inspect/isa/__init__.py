"""The machine code of a kernel: its loops, what their instructions are, and what it should be refused for.

`read_isa` reads a compiler's listing for an AMD GPU into an `Isa`: its instructions with their kinds and
widths, its loops, its main loop, the one that multiplies most by matrix instructions, and what the metadata
says that it takes.  `Gates` states what a kernel must keep to; `broken` says which of it a kernel does not.

    made = kernel.compile(*arrays, target="hip", arch="gfx1151")
    isa = read_isa(made.assembly)
    isa.main.mix                           # how many instructions there are of each kind
    isa.main.widths(IsaKind.SHARED_LOAD)      # loads of shared memory, by bytes of one lane
    isa.main.matrix_per_load               # matrix instructions for each load of global memory
    isa.main.flushes_per_barrier           # instructions that invalidate caches, for each barrier
    isa.resources, isa.limits              # registers, spills, shared memory; warps that each leaves room for
    for one in broken(isa, Gates(warps=6)):
        print(one)                         # which gate, the value, the limit, and the instructions

`isa_report` is what ``tilewright inspect --isa`` shows, `report_of` the same of a kernel that was compiled,
and `page` the report in HTML: the main loop with the author's lines and arrays (`sources`), and how accesses
of shared memory met in banks when the listing was executed (`execute_listing`, `BankCounter`).

    found = isa_report(library_gemm("f16", "4096x4096x4096"), "hip", "gfx1151")
    print(found)
    found.sources[line].tensors            # the arrays that the instruction of a line of the listing moves
    found.conflicts[line].factor           # passes over the banks for each that is needed
    found.met(IsaKind.SHARED_STORE)           # of all stores of the main loop together
"""

from tilewright.inspect.isa.execution import BankCounter, Conflicts, execute_listing
from tilewright.inspect.isa.instructions import Body, IsaKind, IsaLine, ListingLoop
from tilewright.inspect.isa.making import isa_report, report_of
from tilewright.inspect.isa.reading import Breach, Gates, Isa, broken, read_isa
from tilewright.inspect.isa.report import InstructionSource, IsaReport, page, sources

__all__ = [
    "BankCounter",
    "Body",
    "Breach",
    "Conflicts",
    "Gates",
    "InstructionSource",
    "Isa",
    "IsaKind",
    "IsaLine",
    "IsaReport",
    "ListingLoop",
    "broken",
    "execute_listing",
    "isa_report",
    "page",
    "read_isa",
    "report_of",
    "sources",
]
