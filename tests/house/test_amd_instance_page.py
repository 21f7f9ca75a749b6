"""Its script writes the page of the tuned instance; other compilers agree on the rest of its figures."""

from __future__ import annotations

import runpy
from pathlib import Path

from tests.instances.amd import compiled

from tilewright.runtime.amdgcn import find_toolchain

WRITER = runpy.run_path(str(Path(__file__).parents[2] / "scripts" / "amd_instance.py"))


def test_the_page_is_what_is_generated() -> None:
    said = WRITER["PAGE"].read_text()
    if f"The listing is that of {find_toolchain()}; other versions" in said:
        assert said == WRITER["page"](), "run: python scripts/amd_instance.py"
    rows = [*WRITER["beside"](WRITER["report"]())]
    common = [row for row in rows if row[1] != ""]
    assert len(common) == len(rows) - 4
    for row in common[:7]:
        assert f"| {' | '.join(map(str, row))} |" in said.splitlines()


def test_what_differs_is_in_the_text_of_the_kernel() -> None:
    """The threads that read, write and store elements are as in the template and on the page."""
    source, table = compiled("Default").source, [*WRITER["differences"]()]
    here = {str(row[0]).strip("`"): row[2] for row in table}
    k0, rows, k1 = here["ABlockTransferThreadClusterLengths_K0_M_K1"]
    assert (k0, rows, k1) == (8, 32, 1)  # 8 threads of K1 halves along K, and 4 rows each
    moved = _moved(source, "own -> prefetched, 16")
    assert moved == ("const int row = 4*(tid / 8);", "const int col = 8*(tid % 8);")
    assert _moved(source, "prefetched -> sA[0], 16") == moved
    assert "half_t* to = sA + 129*col + 8*row;" in source  # (K0, M + 1, K1)
    assert here["BBlockTransferThreadClusterLengths_K0_N_K1"] == (8, 16, 2)  # 16 threads of 4 along K
    moved = _moved(source, "own_1 -> prefetched_1, 16")
    assert moved == ("const int row = 16*(tid % 16);", "const int col = 4*(tid / 16);")
    assert here["CShuffleBlockTransferClusterLengths"] == (1, 32, 1, 8)
    assert _moved(source, "sD[0, 0] -> tile_8, 16") == (
        "const int row = tid / 8;",
        "const int col = 8*(tid % 8);",
    )


def test_every_parameter_of_the_transfers_has_its_row() -> None:
    """Each row has the template's value for the instance, and a reason if the kernel has another value."""
    table, said = [*WRITER["differences"]()], WRITER["PAGE"].read_text().splitlines()
    for name, template, here, why in table:
        assert (why == "the same") == (str(template) == str(here)), name
        assert any(line.startswith(f"| {name} | {template} | {here} | ") for line in said)
    names = " ".join(str(row[0]) for row in table)
    asked = (
        "ThreadClusterLengths",
        "ArrangeOrder",
        "SrcAccessOrder",
        "SrcVectorDim",
        "DstScalarPerVector_K1",
    )
    assert all(names.count(name) == 2 for name in asked)
    assert all(name in names for name in ("LdsAddExtraM", "LdsAddExtraN", "CShuffleMRepeat", "_NPerBlock"))


def _moved(source: str, what: str) -> tuple[str, str]:
    """Return the row and the column at which a thread begins a copy."""
    lines = [line.strip() for line in source.splitlines()]
    at = next(at for at, line in enumerate(lines) if what in line)
    return lines[at + 2], lines[at + 3]
