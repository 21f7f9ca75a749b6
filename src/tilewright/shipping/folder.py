"""The folder of an exported kernel: libraries, header, manifest and CMake target.

`export` compiles a kernel for classes of arrays and architectures. The static and the shared library hold
the launch code, the kernels for processors, and the machine code for GPUs. `tilewright.shipping.loading`
reads the folder again.
"""

from __future__ import annotations

import hashlib
import io
import json
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from tilewright.dataflow.printer import print_flow
from tilewright.errors import LaunchError, close_to
from tilewright.ir.printer import print_kernel
from tilewright.lang.program import Parameter
from tilewright.namespaces import part
from tilewright.runtime.kernel import Bound
from tilewright.runtime.native import Triple, compile_archive, find_toolchain, host_arch
from tilewright.runtime.outputs import output
from tilewright.runtime.specimens import Specimen
from tilewright.runtime.workers import POOL_SOURCE
from tilewright.shipping.launch_text import MOST_RANK, Exported, c_name, c_type, image_of, image_text
from tilewright.shipping.self_check import reference_arrays, small_problem
from tilewright.targets.target import CPU, CUDA, HIP, TARGETS, owner

NVRTC = "tilewright.runtime.nvrtc:toolchain_id"
CLANG = "tilewright.runtime.amdgcn:find_toolchain"
"""Functions that return the version of a compiler for GPUs; imported at the first use."""

FORMAT = 1
"""Version of the manifest's format."""

MANIFEST = "manifest.json"

TEXTS = Path(__file__).parent / "text"
"""The folder of fixed C++ texts."""

LEVELS = {"x86-64": 1, "x86-64-v3": 3, "x86-64-v4": 4, "aarch64": 1, "generic": 1}
"""The level of a processor that runs an architecture, as `level()` of `text/cpu.cpp` returns it."""

Problem = Sequence[Specimen | None]
"""Arrays of one problem in the order of a kernel's parameters; None for numbers."""


@dataclass(frozen=True)
class Row:
    """One entry of a table of kernels: a kernel for a class, and the extents that it was exported for.

    Args:
        number: the number of the class.
        exported: the kernel, which classes may share.
        shapes: the extents, by parameter.
    """

    number: int
    exported: Exported
    shapes: Mapping[str, tuple[int, ...]]

    @property
    def measured(self) -> str:
        """The C++ name of the table of its extents."""
        return f"measured_{self.exported.symbol}_{self.number}"

    @property
    def text(self) -> str:
        """The C++ table of its extents, eight for each array."""
        padded = ((*self.shapes[name], *(0,) * MOST_RANK)[:MOST_RANK] for name in self.exported.arrays)
        return f"const Wide {self.measured}[] = {{{', '.join(str(n) for shape in padded for n in shape)}}};\n"

    def table_row(self, arch: str, code: str) -> str:
        """Return its entry in a table of kernels.

        Args:
            arch: the name of the architecture in C++.
            code: prefix of the C++ name of the kernel's code: ``"program"`` or ``"image"``.
        """
        one = self.exported
        functions = f"bind_{one.symbol}, fill_{one.symbol}, {one.buffer_bytes}"
        words = f"{one.demands}, {len(one.arrays)}, {self.measured}, {functions}"
        return f"    {{{arch}, {self.number}, {words}, &{code}_{one.symbol}}},\n"


def unique(rows: Sequence[Row]) -> list[Exported]:
    """Return the kernels of some rows, each once."""
    return list({row.exported.symbol: row.exported for row in rows}.values())


@dataclass(frozen=True)
class Export:
    """A kernel with its classes and architectures.

    Args:
        name: the name of the C functions.
        bound: the kernel.
        problems: one for each class of arrays.
        archs: names of architectures.
    """

    name: str
    bound: Bound
    problems: tuple[Problem, ...]
    archs: tuple[str, ...]

    @property
    def parameters(self) -> tuple[Parameter, ...]:
        """The parameters of the author's function."""
        return self.bound.program.parameters

    @cached_property
    def targets(self) -> dict[str, list[str]]:
        """Architectures by target, in the order of the targets."""
        found = {name: [arch for arch in self.archs if owner(arch).name == name] for name in TARGETS}
        return {name: archs for name, archs in found.items() if archs}

    @cached_property
    def rows(self) -> dict[str, list[Row]]:
        """The kernels by target. Problems with the same class and schedule share one kernel."""
        return {target: self._rows(target) for target in self.targets}

    def _rows(self, target: str) -> list[Row]:
        rows = list[Row]()
        for arch in self.targets[target]:
            made = list[Exported]()
            for number, problem in enumerate(self.problems):
                symbol = re.sub(r"\W", "_", f"{self.name}_{arch}_{number}")
                if target == CPU.name:
                    executable = self.bound.as_text(*problem, target=target, arch=arch, name=symbol)
                else:
                    executable = self.bound.compile(*problem, target=target, arch=arch)
                pairs = zip(self.parameters, problem, strict=True)
                shapes = {p.name: one.shape for p, one in pairs if one is not None}
                new = Exported(executable, self.parameters, shapes, symbol)
                known = next((one for one in made if one.is_like(new)), new)
                made += [new] if known is new else []
                rows.append(Row(number, known, shapes))
        return rows

    # ------------------------------------------------------------ C texts

    def declared(self, suffix: str, *, numbers: bool) -> str:
        """Return the parameters of a C function.

        Args:
            suffix: the parameters after those of the kernel.
            numbers: whether the kernel's numbers are among them.
        """
        words = []
        for one in self.parameters:
            if one.kind == "tensor":
                words.append(f"const tilewright_array* {c_name(one.name)}")
            elif one.kind == "index":
                words.append(f"int {c_name(one.name)}")
            elif numbers:
                words.append(f"{c_type(one.dtype)} {c_name(one.name)}")
        return ", ".join([*words, suffix])

    def functions(self, target: str) -> list[tuple[str, str, int, bool]]:
        """Return name, parameters, class (-1: any) and whether it launches, of each function of a target."""
        last = "tilewright_pool* pool" if target == CPU.name else "void* stream"
        launch = f"void* workspace, unsigned long long workspace_bytes, {last}"
        asks = f"{last}, unsigned long long* bytes"
        found = []
        for number in (-1, *range(len(self.problems))) if len(self.problems) > 1 else (-1,):
            name = f"{self.name}_{target}{'' if number < 0 else f'_{number}'}"
            found.append((name, self.declared(launch, numbers=True), number, True))
            found.append((f"{name}_workspace", self.declared(asks, numbers=False), number, False))
        return found

    def header(self) -> str:
        """Return the C header."""
        guard = f"TILEWRIGHT_{self.name.upper()}_H"
        doc = (self.bound.program.__doc__ or "").strip().partition("\n")[0]
        doc = doc.replace("*/", "* /").replace("/*", "/ *")  # neither ends the comment nor begins another
        lines = [f"/* {self.name}: {doc or 'a kernel of tilewright'}"]
        lines += [f" *   {line}" for line in map(self._described, self.parameters)]
        lines += [" * Classes of arrays:"]
        lines += [f" *   {number}: {self._class_text(one)}" for number, one in enumerate(self.problems)]
        lines += [" * A launch returns TILEWRIGHT_OK or an error; tilewright_error_name names it. */"]
        body = []
        for target in self.targets:
            last = (
                "`pool` may be null: then the calling thread computes alone."
                if target == CPU.name
                else "`stream` is a stream of the driver; the device of the current context runs the kernel."
            )
            body.append(
                f"/* On {target} ({', '.join(self.targets[target])}). `workspace` begins at a multiple of\n"
                f" * 256 bytes, and has the bytes that {self.name}_{target}_workspace reports for the same\n"
                f" * arrays.\n"
                f" * {last} */"
            )
            for name, parameters, number, launches in self.functions(target):
                if number >= 0 and launches:
                    body.append(f"/* Class {number} only. */")
                body.append(f"TILEWRIGHT_API int {name}({parameters});")
            if target != CPU.name:
                body.append("/* The status of the last call that the driver refused; 0: none. */")
                body.append(f"TILEWRIGHT_API int {self.name}_{target}_status(void);")
            body.append("")
        declared = "\n".join(body)
        return (
            "\n".join(lines)
            + f'\n#ifndef {guard}\n#define {guard}\n\n#include "tilewright.h"\n\n#ifdef __cplusplus\n'
            f'extern "C" {{\n#endif\n\n{declared}\n#ifdef __cplusplus\n}}\n#endif\n#endif\n'
        )

    @staticmethod
    def _described(one: Parameter) -> str:
        if one.kind == "tensor":
            return f"{c_name(one.name)}: array ({', '.join(one.dims) or 'no names of dimensions'})"
        return f"{c_name(one.name)}: {'integer' if one.kind == 'index' else f'number, {one.dtype}'}"

    def _class_text(self, problem: Problem) -> str:
        pairs = zip(self.parameters, problem, strict=True)
        return ", ".join(
            f"{p.name} {one.dtype} {'x'.join(map(str, one.shape))} strides {'x'.join(map(str, one.strides))}"
            for p, one in pairs
            if one is not None
        )

    def host_text(self) -> str:
        """Return the launch code: checks, the choice of a kernel, and the C functions."""
        parts = [
            _fixed("tilewright.h"),
            self.header().replace('#include "tilewright.h"\n', ""),
            _fixed("host.cpp"),
        ]
        tensors = [one for one in self.parameters if one.kind == "tensor"]
        ranks = [len(one.shape) for one in self.problems[0] if one is not None]
        parts.append(
            f"namespace {{\nconst int ranks[] = {{{', '.join(map(str, ranks))}}};\n}}  // namespace\n"
        )
        integers = "".join(f"{c_name(one.name)}, " for one in self.parameters if one.kind == "index")
        arrays = ", ".join(c_name(one.name) for one in tensors)
        numbers = "".join(f"&{c_name(one.name)}, " for one in self.parameters if one.kind == "scalar")
        for target in self.targets:
            parts.append(WRITERS[target](self, target))
            last = "pool" if target == CPU.name else "stream"
            for name, parameters, number, launches in self.functions(target):
                given = f"{{{numbers}nullptr}}" if launches else "{nullptr}"
                rest = (
                    f"workspace, workspace_bytes, {last}, nullptr"
                    if launches
                    else f"nullptr, 0, {last}, bytes"
                )
                parts.append(
                    f'extern "C" int {name}({parameters}) {{\n'
                    f"  const tilewright_array* const arrays[] = {{{arrays}}};\n"
                    f"  const Wide integers[] = {{{integers}0}};\n"
                    f"  const void* const numbers[] = {given};\n"
                    f"  return launch_{target}({number}, Call{{arrays, integers, numbers}}, {rest});\n}}\n"
                )
        return "\n".join(parts)

    def sources(self) -> list[tuple[str, str, Triple]]:
        """Return the C++ texts of the libraries: name, text, and the machine that each is compiled for."""
        plain = Triple("", LEAST.get(host_arch(), ""))
        found = [
            (f"{self.name}.cpp", self.host_text(), plain),
            ("tilewright.cpp", POOL_SOURCE + _fixed("common.cpp"), plain),
        ]
        for exported in unique(self.rows.get(CPU.name, ())):
            assert exported.executable.listing is not None
            text = exported.executable.listing.text
            spaced = f"namespace tilewright_{exported.symbol} {{\n{text}\n}}  // namespace\n"
            found.append((f"{exported.symbol}.cpp", spaced, machine(exported.executable.arch)))
        return found

    def expected(self) -> dict[str, bytes]:
        """Return the arrays of the checks of an explicit kernel: a file for each class."""
        found = dict[str, bytes]()
        for rows in self.rows.values():
            for row in rows:
                file, problem = f"check_{row.number}.npz", small_problem(row.exported)
                if row.exported.executable.flow is not None or problem is None or file in found:
                    continue
                arrays = reference_arrays(self.bound, row.exported, problem)
                if arrays is not None:
                    held = io.BytesIO()
                    np.savez(held, **arrays)
                    found[file] = held.getvalue()
        return found

    # ------------------------------------------------------------ manifest

    def manifest(self, files: Mapping[str, bytes]) -> dict[str, Any]:
        """Return the manifest.

        Args:
            files: the other files of the folder.
        """
        first = next(iter(self.rows.values()))[0].exported.executable
        flow = first.flow
        computes = print_kernel(first.kernel) if flow is None else print_flow(flow)
        versions = {"tilewright": sys.modules["tilewright"].__version__, "host": str(find_toolchain())}
        if CUDA.name in self.targets:
            versions[CUDA.name] = " ".join(part(NVRTC)().split()[:2])
        if HIP.name in self.targets:
            identity: str = part(CLANG)(self.targets[HIP.name][0]).identity
            versions[HIP.name] = " ".join(identity.split()[:2])
        return {
            "format": FORMAT,
            "name": self.name,
            "kernel": self.bound.program.name,
            "about": (self.bound.program.__doc__ or "").strip().partition("\n")[0],
            "language": "explicit" if flow is None else "dataflow",
            "computes": computes,
            "parameters": [
                {"name": one.name, "kind": one.kind, "dims": list(one.dims), "dtype": str(one.dtype)}
                for one in self.parameters
            ],
            "classes": [
                {
                    param.name: {
                        "dtype": str(one.dtype),
                        "shape": list(one.shape),
                        "strides": list(one.strides),
                    }
                    for param, one in zip(self.parameters, problem, strict=True)
                    if one is not None
                }
                for problem in self.problems
            ],
            "kernels": [self._kernel_facts(row, files) for rows in self.rows.values() for row in rows],
            "versions": versions,
            "sha256": {name: hashlib.sha256(data).hexdigest() for name, data in sorted(files.items())},
        }

    def _kernel_facts(self, row: Row, files: Mapping[str, bytes]) -> dict[str, Any]:
        exported, made = row.exported, row.exported.executable
        assert made.listing is not None
        spaces = exported.binding(row.shapes).workspaces
        is_checked = made.flow is not None or f"check_{row.number}.npz" in files
        workspaces = sum(spaces[one.value.name] * one.value.dtype.bytes for one in exported.spaces)
        return {
            "target": made.target,
            "arch": made.arch,
            "class": row.number,
            "file": f"{exported.symbol}{ENDINGS.get(made.target, '.cpp')}",
            "entry": made.listing.entry,
            "schedule": None if made.schedule is None else str(made.schedule),
            "threads": exported.kernel.threads,
            "shared_bytes": made.listing.shared_bytes,
            "workspace_bytes": workspaces,
            "resources": dict(made.resources),
            "arrays": {
                name: {
                    "unit_dim": spec.unit_dim,
                    "extent_divisors": list(spec.extent_divisors),
                    "stride_divisors": list(spec.stride_divisors),
                    "align": spec.align,
                    "wide": spec.wide,
                    "signed": spec.signed,
                }
                for name, spec in exported.specs.items()
            },
            "writes": sorted(exported.kernel.written_params),
            "check": small_problem(exported) if is_checked else None,
        }


def machine(arch: str) -> Triple:
    """Return the machine that code for an architecture of a processor is compiled for.

    Example:
        >>> machine("x86-64-v3").cpu
        'x86-64-v3'
    """
    return Triple("", "" if arch in ("generic", "aarch64") else arch)


def runs_here(arch: str) -> bool:
    """Return whether code for an architecture of a processor is code for machines of this kind.

    Example:
        >>> runs_here("generic")
        True
    """
    return arch == "generic" or arch.partition("-")[0] == host_arch().partition("-")[0]


LEAST = {"x86-64-v3": "x86-64", "x86-64-v4": "x86-64", "x86-64": "x86-64"}
"""The processor that launch code is compiled for, by the architecture of this machine."""


def _fixed(name: str) -> str:
    return (TEXTS / name).read_text(encoding="utf-8")


# ---------------------------------------------------------------- the part of each target


def _cpu_text(export: Export, target: str) -> str:
    """Return the tables of kernels for processors, and the function that launches one."""
    rows = export.rows[target]
    archs = export.targets[target]
    names = {arch: re.sub(r"\W", "_", f"arch_{arch}") for arch in archs}
    parts = [_fixed("cpu.cpp")]
    entries = "".join(
        f'extern "C" void {one.symbol}(const void*, long long*, void*, long long);\n' for one in unique(rows)
    )
    parts.append(f"{entries}\nnamespace {{\n")
    parts += [f'constexpr char {name}[] = "{arch}";\n' for arch, name in names.items()]
    for one in unique(rows):
        assert one.executable.listing is not None
        words = f"{one.symbol}, {one.executable.listing.shared_bytes}, {one.zeroed}"
        parts.append(f"{one.text()}const Program program_{one.symbol} = {{{words}}};\n")
    parts += [row.text for row in rows]
    table = [row.table_row(names[row.exported.executable.arch], "program") for row in rows]
    levels = ", ".join(f"{{{name}, {LEVELS[arch]}}}" for arch, name in names.items())
    parts.append(f"const Kernel kernels_cpu[] = {{\n{''.join(table)}}};\n")
    parts.append(f"const Processor archs_cpu[] = {{{levels}}};\n")
    parts.append(f"""
int launch_cpu(int number, const Call& call, void* workspace, Bytes workspace_bytes, void* pool,
               Bytes* needed) {{
  const char* arch = processor(archs_cpu, {len(archs)});
  if (arch == nullptr) return error(TILEWRIGHT_MACHINE, 0);
  const Kernel* kernel;
  Bound bound;
  if (int wrong = choose(kernels_cpu, {len(rows)}, arch, number, call, ranks, &kernel, bound)) return wrong;
  if (needed == nullptr) return run_cpu(*kernel, call, bound, workspace, workspace_bytes, pool);
  const int threads = pool == nullptr ? 1 : tilewright_pool_workers(pool) + 1;
  *needed = bound.bytes + scratch_of(*(const Program*)kernel->code, threads);
  return 0;
}}
}}  // namespace
""")
    return "".join(parts)


def _gpu_text(export: Export, target: str) -> str:
    """Return the machine code and the tables of kernels for GPUs, and the function that launches one."""
    rows, archs = export.rows[target], export.targets[target]
    names = {arch: re.sub(r"\W", "_", f"arch_{arch}") for arch in archs}
    is_first = target == next(one for one in export.targets if one != CPU.name)
    parts = [_fixed("driver.cpp") if is_first else "", _fixed(f"{target}.cpp"), "\nnamespace {\n"]
    parts += [f'constexpr char {name}[] = "{arch}";\n' for arch, name in names.items()]
    parts.append(f"const char* const archs_{target}[] = {{{', '.join(names.values())}}};\n")
    parts += [one.text() + image_text(one) for one in unique(rows)]
    parts += [row.text for row in rows]
    table = [row.table_row(names[row.exported.executable.arch], "image") for row in rows]
    specs = rows[0].exported.specs
    bits = ", ".join(str(specs[name].dtype.bits) for name in rows[0].exported.arrays)
    counts = f"kernels_{target}, {len(rows)}, archs_{target}, {len(archs)}"
    parts.append(f"const Kernel kernels_{target}[] = {{\n{''.join(table)}}};\n")
    parts.append(f"""const int bits_{target}[] = {{{bits}}};

int launch_{target}(int number, const Call& call, void* workspace, Bytes workspace_bytes, void* stream,
                Bytes* needed) {{
  return launch_on_{target}({counts}, ranks, bits_{target}, number, call,
                        workspace, workspace_bytes, stream, needed);
}}
}}  // namespace

extern "C" int {export.name}_{target}_status(void) {{ return {target}_status; }}
""")
    return "".join(parts)


WRITERS: Mapping[str, Callable[[Export, str], str]] = {
    CPU.name: _cpu_text,
    CUDA.name: _gpu_text,
    HIP.name: _gpu_text,
}
"""The function that writes the launch code of a target."""

ENDINGS = {CUDA.name: ".cubin", HIP.name: ".hsaco"}
"""The ending of a file of machine code."""

# ---------------------------------------------------------------- the folder


def export(
    bound: Bound,
    problems: Sequence[Problem],
    archs: Sequence[str],
    folder: str | Path,
    name: str | None = None,
) -> dict[str, Any]:
    """Compile a kernel, and write it to a folder for programs without Python.

    Args:
        bound: the kernel with its constants.
        problems: arrays of each class, in the order of the kernel's parameters; None for numbers.
        archs: names of architectures, e.g. ``"sm_90a"``, ``"gfx942"``, ``"x86-64-v3"``.
        folder: the folder, which is made; files of an earlier export are replaced.
        name: the name of the C functions; default: the kernel's.

    Returns:
        The manifest.

    Raises:
        LaunchError: no such architecture, no problem, dtypes that differ between problems, or a name that C
            does not allow.
        LegalityError: the kernel breaks rules of a target.
        OutputError: the folder cannot be written.

    Example:
        >>> import os, tempfile
        >>> import numpy as np
        >>> import tilewright as tw
        >>> @tw.kernel(A="M K", B="K N", C="M N")
        ... def gemm(A, B, C):
        ...     for m, n in tw.tiles(C):
        ...         acc = tw.zeros()
        ...         for k in tw.steps(A.shape[1]):
        ...             acc += A[m, k] @ B[k, n]
        ...         C[m, n] = acc
        >>> folder = tempfile.mkdtemp()
        >>> made = export(gemm.bind(), [[tw.like("f32", 64, 64)] * 3], ["x86-64"], folder)
        >>> sorted(os.listdir(folder))[:3], made["kernels"][0]["target"]
        (['CMakeLists.txt', 'gemm.h', 'libgemm.a'], 'cpu')
        >>> x, y, z = np.ones((8, 8), np.float32), np.empty((8, 8), np.float32), np.empty((8, 8), np.float32)
        >>> tw.load_kernel(folder)(x, x, y), gemm(x, x, z, target="reference").target, bool((y == z).all())
        ('cpu', 'reference', True)
    """
    called = name or bound.program.name
    if not re.fullmatch(r"[A-Za-z_]\w*", called) or c_name(called) != called:
        near = re.sub(r"\W", "_", called) or "kernel"
        near = f"kernel_{near}" if near[0].isdigit() or c_name(near) != near else near
        raise LaunchError(f"name {called!r} is no name of C functions", near)
    known = {
        arch: target for target in TARGETS.values() if target.machine_code for arch in target.architectures
    }
    if not archs:
        raise LaunchError("no architecture to export for", host_arch())
    for arch in archs:
        if arch not in known:
            raise LaunchError(
                f"unknown architecture {arch!r}; known: {', '.join(known)}{close_to(arch, known)}"
            )
        if known[arch] is CPU and not runs_here(arch):
            raise LaunchError(
                f"{arch} is the architecture of another machine than this one, and the library has launch "
                "code for this one",
                f"{host_arch()}, or an export on such a machine",
            )
    if not problems:
        raise LaunchError("no arrays to export for; give the arrays of at least one problem")
    _check_dtypes(bound.program.parameters, problems)
    of = Export(called, bound, tuple(map(tuple, problems)), tuple(dict.fromkeys(archs)))
    sources = of.sources()
    static, shared = compile_archive([(text, where) for _, text, where in sources])
    files: dict[str, bytes] = {
        f"lib{called}.a": static,
        f"lib{called}.so": shared,
        f"{called}.h": of.header().encode(),
        "tilewright.h": _fixed("tilewright.h").encode(),
        "CMakeLists.txt": _fixed("CMakeLists.txt").replace("@NAME@", called).encode(),
    }
    files |= of.expected()
    files |= {
        f"{one.symbol}{ENDINGS[target]}": image_of(one)
        for target, rows in of.rows.items()
        if target in ENDINGS
        for one in unique(rows)
    }
    files |= {f"source/{file}": text.encode() for file, text, _ in sources}
    manifest = of.manifest(files)
    files[MANIFEST] = (json.dumps(manifest, indent=1) + "\n").encode()
    place = Path(folder)
    (place / "source").mkdir(parents=True, exist_ok=True)
    for file, data in files.items():
        with output(place / file) as stream:
            stream.write(data)
    return manifest


def _check_dtypes(parameters: Sequence[Parameter], problems: Sequence[Problem]) -> None:
    for at, parameter in enumerate(parameters):
        there = [one.dtype for problem in problems if (one := problem[at]) is not None]
        kinds = {str(kind) for kind in there}
        ranks = {len(one.shape) for problem in problems if (one := problem[at]) is not None}
        if packed := [kind for kind in there if kind.is_packed]:
            raise LaunchError(
                f"{parameter.name} is {packed[0]}, whose elements share bytes, and no such array is exported",
                "i8",
            )
        if turned := [kind for kind in there if kind.components > 1]:
            raise LaunchError(
                f"{parameter.name} is {turned[0]}, and C functions take no arrays of complex numbers",
                f"a kernel whose arrays have a last dimension of both parts, of {turned[0].component}",
            )
        for what, found in (("dtype", kinds), ("number of dimensions", ranks)):
            if len(found) > 1:
                raise LaunchError(
                    f"{parameter.name} has more than one {what} ({', '.join(sorted(map(str, found)))}), and "
                    "C functions do not tell them apart",
                    "an export for each, with --name",
                )
