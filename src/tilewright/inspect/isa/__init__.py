"""The machine code of a kernel: its instructions and loops, and gates that its main loop must pass.

`read_isa` reads a compiler's listing for an AMD GPU into an `Isa`: the instructions with their kinds and
widths, the loops, the main loop, which has the most matrix instructions, and the resources in the metadata.
`Gates` are limits for a kernel; `broken` returns the gates that a kernel does not pass.

    made = kernel.compile(*arrays, target="hip", arch="gfx1151")
    isa = read_isa(made.assembly)
    isa.main.mix                           # number of instructions of each kind
    isa.main.widths(IsaKind.SHARED_LOAD)   # loads of shared memory, by bytes of one lane
    isa.main.matrix_per_load               # matrix instructions per load of global memory
    isa.main.flushes_per_barrier           # cache invalidations per barrier
    isa.resources, isa.limits              # registers, spills, shared memory; warps that each of them allows
    for one in broken(isa, Gates(warps=6)):
        print(one)                         # the gate, the value, the limit, and the instructions

`isa_report` makes the report of ``tilewright inspect --isa``, `report_of` the report of a compiled kernel,
and `page` its HTML: the main loop with the author's lines and arrays (`sources`), and bank conflicts, counted
in an execution of the listing (`execute_listing`, `BankCounter`).

    found = isa_report(library_gemm("f16", "4096x4096x4096"), "hip", "gfx1151")
    print(found)
    found.sources[line].tensors            # the arrays of the instruction at a line of the listing
    found.conflicts[line].factor           # passes over the banks per necessary pass
    found.met(IsaKind.SHARED_STORE)        # bank conflicts of all stores of the main loop
"""

from tilewright.inspect.isa.instructions import Body, IsaKind, IsaLine, ListingLoop
from tilewright.inspect.isa.making import BankCounter, execute_listing, isa_report, report_of
from tilewright.inspect.isa.reading import Breach, Gates, Isa, broken, read_isa
from tilewright.inspect.isa.report import InstructionSource, IsaReport, page, sources
from tilewright.targets.simt.banks import Conflicts

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
