"""`tilewright instance`: specializations of a tuned instance in one code object for an AMD GPU."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer

from tilewright.cli.console import UsageError, choose, file_to_write, reports, say, working
from tilewright.dtypes import DType, dtype, f32
from tilewright.inspect.from_files import load
from tilewright.instances.gemms import DeviceGemm, bound_to
from tilewright.instances.words import GEMM_SPECIALIZATIONS, PASS_THROUGH
from tilewright.lang.specs import TensorSpec
from tilewright.ops.products import plain, scaled
from tilewright.runtime.amdgcn import assemble
from tilewright.runtime.hip import listing_together
from tilewright.runtime.kernel import Bound
from tilewright.runtime.outputs import check_output, output
from tilewright.targets.target import HIP

EXAMPLE = "tilewright instance instance.py:instance --arch gfx1151 --b-memory f8e4m3 --output instance.hsaco"

BOTH = "Default,MNKPadding"
"""The default specializations of an instance: for whole tiles, and for ragged extents."""

ROW_BYTES = 16
"""Alignment of arrays and their rows, in bytes: the width of a lane's load."""


@reports
def instance(
    given: Annotated[
        str,
        typer.Argument(
            metavar="FILE.py:NAME",
            help="The instance: a tw.ck.DeviceGemmWmma or DeviceGemmXdl of a Python file.",
        ),
    ],
    arch: Annotated[str, typer.Option(help="The architecture, such as gfx1151.")],
    written: Annotated[
        Path, typer.Option("--output", "-o", parser=file_to_write, help="The code object to write.")
    ],
    specializations: Annotated[
        str, typer.Option(metavar="NAME,…", help="Which specializations: Default, MPadding … MNKPadding.")
    ] = BOTH,
    b_memory: Annotated[
        str | None,
        typer.Option(
            metavar="DTYPE",
            help="The dtype of B in memory, if it is narrower than the multiplied dtype: the kernel then "
            "computes tw.scaled_mm, with an f32 scale for each column and an f32 bias.",
            show_default=False,
        ),
    ] = None,
    listing: Annotated[
        Path | None,
        typer.Option(metavar="FILE.s", help="Write the assembler listing, too.", show_default=False),
    ] = None,
) -> None:
    """Compile specializations of a tuned instance into one code object, a kernel for each.

    The names of the kernels are their symbols. Needs a compiler for AMD GPUs, but neither a GPU nor ROCm.

    Exit status: 0, or 2 when the request cannot be served.
    """
    choose("architecture", arch, tuple(HIP.architectures))
    for path in (written, *([] if listing is None else [listing])):
        check_output(path)
    if listing is not None and listing.resolve() == written.resolve():
        nearest = written.with_suffix(".hsaco" if written.suffix == ".s" else ".s")
        raise UsageError(f"--output and --listing are both {written}; nearest: {nearest} for one of them")
    found = _found(given)
    kernels = []
    for name in _names(specializations):
        kernel, specs = _bound(replace(found, gemm_specialization=name), arch, b_memory)
        with working(f"compiling {kernel.program.name}"):
            kernels.append(kernel.compile(**specs, target=HIP.name, arch=arch))
    together = listing_together(kernels)
    data = assemble(together, arch, kernels[0].kernel.name)
    with output(written) as file:
        file.write(data)
    if listing is not None:
        with output(listing) as file:
            file.write(together.encode())
    for made in kernels:
        taken = made.resources
        used = f"{taken['registers']} registers, {taken['shared_bytes']} bytes of LDS"
        say("kernel", f"{made.kernel.name}: {used}")
    say("wrote", f"{written}: {len(kernels)} kernels for {arch}, {len(data)} bytes")


def _found(given: str) -> DeviceGemm:
    """Load the instance that a file defines."""
    path, colon, name = given.rpartition(".py:")
    if not colon:
        raise UsageError(f"unknown instance {given!r}; give FILE.py:NAME, such as {EXAMPLE}")
    content = vars(load(Path(f"{path}.py"))).items()
    defined = {known: value for known, value in content if isinstance(value, DeviceGemm)}
    if not defined:
        raise UsageError(f"{path}.py has no instance; define a tw.ck.DeviceGemmWmma or a tw.ck.DeviceGemmXdl")
    choose("instance", name, tuple(defined))
    return defined[name]


def _names(specializations: str) -> Iterator[str]:
    names = specializations.split(",")
    for at, name in enumerate(names):
        choose("specialization", name, GEMM_SPECIALIZATIONS)
        if name in names[:at]:
            raise UsageError(
                f"--specializations names {name} twice; nearest: {','.join(dict.fromkeys(names))}"
            )
    yield from names


def _bound(instance: DeviceGemm, arch: str, b_memory: str | None) -> tuple[Bound, dict[str, TensorSpec]]:
    """Return the kernel of an instance, and the specs of its arrays."""
    for check in instance.check(arch=arch).failed:
        raise UsageError(f"{instance.gemm_specialization} on {arch}: {check}")
    for field in ("a_element_op", "b_element_op", "c_element_op"):
        if getattr(instance, field) != PASS_THROUGH:
            raise UsageError(f"{field} is {getattr(instance, field)}; nearest: {PASS_THROUGH}")
    a, b = instance.dtypes
    narrow = None if b_memory is None else dtype(b_memory)
    specs = {"A": _matrix(a, instance.a_layout), "B": _matrix(narrow or b, instance.b_layout)}
    result = {"D": _matrix(dtype(instance.c_dtype), instance.c_layout)}
    if narrow is None:
        return bound_to(instance, plain(0), arch, precision="exact"), specs | result
    vector = TensorSpec(f32, 1, 0, (1,), (1,), ROW_BYTES, False)
    terms: dict[str, Any] = {"multiplied": a, "terms": frozenset({"scale_b", "bias"}), "activation": None}
    vectors = dict.fromkeys(("scale_a", "scale_b", "bias"), vector)
    return bound_to(instance, scaled(0), arch, narrow, **terms), specs | vectors | result


def _matrix(kind: DType, layout: str) -> TensorSpec:
    """Return the class of matrices whose rows or columns begin at multiples of 16 bytes."""
    dim, unit = int(layout == "row"), ROW_BYTES // kind.bytes
    along, across = (1, unit), (unit, 1)
    return TensorSpec(kind, 2, dim, along if dim else across, across if dim else along, ROW_BYTES, False)
