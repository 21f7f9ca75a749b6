"""Operations without Python: a library for PyTorch's C++ runtime, with the calls of a model.

A model that AOTInductor packaged calls its operations through PyTorch's dispatcher.  `export_operations`
runs the model, records the launches of each call, and writes a library that registers these operations by
PyTorch's stable C++ interface.  A process that loads the library needs neither Python nor tilewright.
"""

from __future__ import annotations

import ctypes
import inspect
import json
import math
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from tilewright.errors import LaunchError, ToolchainError
from tilewright.ops.replay import recorded_calls
from tilewright.runtime.arrays import LOCATORS, locate_new
from tilewright.runtime.host import PreparedCpu
from tilewright.runtime.libraries import Library
from tilewright.runtime.native import (
    Triple,
    choose,
    compile_archive,
    find_toolchains,
    host_arch,
    run_compiler,
)
from tilewright.runtime.outputs import output
from tilewright.runtime.workers import POOL_SOURCE
from tilewright.shipping.folder import LEAST, machine
from tilewright.targets.rules import EmittedText
from tilewright.torch.kernels import KernelOperation
from tilewright.torch.registry import NAMESPACE, OPERATIONS, Operation, tensors_of

HERE = "tilewright.torch.export_operations"

_TEXTS = Path(__file__).with_name("text")

ALIGN = 16
"""Largest alignment in bytes that a record requires of an argument's address."""

POISON = 0xA5
"""The byte that fills results before a recorded call is compared with the operation."""

MOST_RANK = 8
"""Most dimensions of an array, as in `text/operations.cpp`."""

SCALAR_TYPES = {
    torch.uint8: "Byte",
    torch.int8: "Char",
    torch.int16: "Short",
    torch.int32: "Int",
    torch.int64: "Long",
    torch.uint16: "UInt16",
    torch.uint32: "UInt32",
    torch.uint64: "UInt64",
    torch.float16: "Half",
    torch.bfloat16: "BFloat16",
    torch.float32: "Float",
    torch.float64: "Double",
    torch.complex64: "ComplexFloat",
    torch.complex128: "ComplexDouble",
    torch.bool: "Bool",
    torch.float8_e5m2: "Float8_e5m2",
    torch.float8_e4m3fn: "Float8_e4m3fn",
    torch.float8_e8m0fnu: "Float8_e8m0fnu",
}
"""Names of dtypes in C++."""

CPP_TYPES = {
    "Tensor": "Tensor",
    "Optional[Tensor]": "std::optional<Tensor>",
    "float": "double",
    "Optional[float]": "std::optional<double>",
    "int": "int64_t",
    "SymInt": "int64_t",
    "Optional[int]": "std::optional<int64_t>",
    "bool": "bool",
    "str": "std::string",
    "Optional[str]": "std::optional<std::string>",
    "Optional[ScalarType]": "std::optional<ScalarType>",
    "List[int]": "std::vector<int64_t>",
}
"""C++ types of the arguments that PyTorch's stable interface passes, by their names in schemas."""


@dataclass
class Record:
    """One recorded call of an operation.

    Args:
        operation: the operation.
        arguments: its arguments; tensors are copies of the call's.
        results: the results of the operation on these arguments.
        launches: for each launch the prepared kernel, its arguments, the number of the buffer that each array
        lies in (-1: scratch memory), and the array's offset in that buffer in bytes.
        temporaries: other arrays that the launches write and read.
        scratch_bytes: bytes of scratch memory that the launches share.
    """

    operation: Operation
    arguments: tuple[Any, ...]
    results: tuple[torch.Tensor, ...]
    launches: list[tuple[PreparedCpu, Sequence[Any], list[int], list[int]]] = field(default_factory=list)
    temporaries: list[torch.Tensor] = field(default_factory=list)
    scratch_bytes: int = 0

    @property
    def text(self) -> str:
        """The call in words."""
        return f"({', '.join(map(_said, self.arguments))})"


def _said(one: Any) -> str:
    if not isinstance(one, torch.Tensor):
        return repr(one)
    return f"{SCALAR_TYPES.get(one.dtype, one.dtype)}{tuple(one.shape)} of strides {one.stride()}"


class WatchedCalls(TorchDispatchMode):
    """Records the arguments of each distinct call of an operation of this library."""

    def __init__(self) -> None:
        super().__init__()
        self.found: dict[Any, tuple[Operation, tuple[Any, ...]]] = {}

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        if func.namespace == NAMESPACE:
            names = [one.name for one in func._schema.arguments]
            given = (*args, *((kwargs or {})[name] for name in names[len(args) :]))
            operation = OPERATIONS[func._schema.name.partition("::")[2]]
            copied = tuple(map(_copied, given))
            key: list[Any] = [operation.name]
            for one in copied:
                if isinstance(one, torch.Tensor):
                    key.append((one.dtype, tuple(one.shape), one.stride(), _alignment(one)))
                else:
                    key.append(tuple(one) if isinstance(one, list) else (type(one), one))
            self.found.setdefault(tuple(key), (operation, copied))
        return func(*args, **(kwargs or {}))


def _alignment(one: torch.Tensor) -> int:
    """The largest power of two up to `ALIGN` that divides the address, in bytes."""
    address = one.data_ptr() | ALIGN
    return address & -address


def _copied(one: Any) -> Any:
    """A copy of a tensor with the same strides, in its own memory, and with the same small alignment."""
    if not isinstance(one, torch.Tensor):
        return one
    if not one.is_cpu:
        raise LaunchError(
            f"{HERE}: a call has a tensor on {one.device}, and libraries run on processors",
            "the model and its inputs on the CPU",
        )
    if one.dtype not in SCALAR_TYPES or one.dim() > MOST_RANK:
        raise LaunchError(
            f"{HERE}: a call has a tensor of {one.dtype} with {one.dim()} dimensions",
            f"at most {MOST_RANK} dimensions, of {', '.join(map(str, SCALAR_TYPES))}",
        )
    one = one.detach().resolve_conj().resolve_neg()
    size, extents = one.element_size(), zip(one.shape, one.stride(), strict=True)
    count = 1 + sum((n - 1) * step for n, step in extents) if one.numel() else 0
    memory = torch.zeros(count * size + 4 * ALIGN, dtype=torch.uint8)
    start = -memory.data_ptr() % (2 * ALIGN) + _alignment(one)
    elements = memory[start : start + count * size].view(one.dtype)
    elements.copy_(one.as_strided((count,), (1,), one.storage_offset()))
    return elements.as_strided(one.shape, one.stride(), elements.storage_offset())


# ---------------------------------------------------------------- from calls to records


def _recorded(operation: Operation, arguments: tuple[Any, ...]) -> Record:
    """Record the launches of a call.

    Raises:
        LaunchError: PyTorch computes a part of the operation.
    """
    made = operation.run(*arguments)
    record = Record(operation, arguments, made if isinstance(made, tuple) else (made,))
    own = getattr(inspect.unwrap(operation.run), "__self__", None)
    if isinstance(own, KernelOperation):
        fresh = own.made(arguments)
        named = dict(zip(own.signature.names, (*arguments, *fresh), strict=True))
        passed = tuple(named[one.name] for one in own.bound.program.parameters)
        plan, _ = own.bound.planned(passed, None)
        arrays = tensors_of(passed)
        _add(record, fresh, plan.prepared, passed, arrays, (0,) * len(arrays))
        return record
    results: tuple[torch.Tensor, ...] = ()

    def run() -> None:
        nonlocal results
        made = operation.run(*arguments)
        results = made if isinstance(made, tuple) else (made,)

    for call in recorded_calls(run):
        if call.record is None:
            continue
        record.scratch_bytes = max(record.scratch_bytes, call.record.scratch_bytes)
        own_call = call.plan.call
        for launch in call.record.launches:
            arrays = [None if at < 0 else own_call.arrays[own_call.names[at]] for at in launch.places]
            offsets = launch.offsets or (0,) * len(arrays)
            _add(record, results, launch.prepared, call.arguments(launch), arrays, offsets)
    return record


def _add(
    record: Record,
    results: Sequence[torch.Tensor],
    prepared: Any,
    arguments: Sequence[Any],
    arrays: Sequence[Any],
    offsets: Sequence[int],
) -> None:
    """Add a launch to a record; None stands for scratch memory among its arrays."""
    assert isinstance(prepared, PreparedCpu), "the tensors lie in host memory"
    known = [*tensors_of(record.arguments), *results, *record.temporaries]
    places, added = list[int](), list[int]()
    for array, offset in zip(arrays, offsets, strict=True):
        place, start = -1, 0
        if array is not None:
            _, address = LOCATORS.get(type(array), locate_new)(array, 0)
            inside = [at for at, one in enumerate(known) if 0 <= address - one.data_ptr() < _bytes_of(one)]
            if not inside and isinstance(array, torch.Tensor) and array.numel():
                inside = [len(known)]
                record.temporaries.append(array)
                known.append(array)
            if inside:
                place, start = inside[0], address - known[inside[0]].data_ptr()
        places.append(place)
        added.append(start + offset)
    record.launches.append((prepared, arguments, places, added))


def _bytes_of(one: torch.Tensor) -> int:
    return one.untyped_storage().nbytes() - one.storage_offset() * one.element_size()


# ---------------------------------------------------------------- C++ texts


@dataclass(frozen=True)
class Texts:
    """The C++ of a library.

    Args:
        records: the calls.
    """

    records: Sequence[Record]

    @cached_property
    def kernels(self) -> dict[str, EmittedText]:
        """The texts of the kernels, each once, by their names in the library."""
        found = dict[str, EmittedText]()
        for record in self.records:
            for prepared, *_ in record.launches:
                listing = prepared.executable.listing
                assert listing is not None, "compiled kernels have their texts"
                if all(one.text != listing.text for one in found.values()):
                    found[f"tilewright_kernel_{len(found)}"] = listing
        return found

    def sources(self) -> list[tuple[str, str, Triple]]:
        """Return the freestanding texts: name, text, and the machine that each is compiled for."""
        plain = Triple("", LEAST.get(host_arch(), ""))
        found = [("records.cpp", self.tables(), plain), ("workers.cpp", POOL_SOURCE, plain)]
        for symbol, listing in self.kernels.items():
            text = f"namespace of_{symbol} {{\n{listing.text}\n}}  // namespace\n"
            named = f"#define {listing.entry} {symbol}\n{text}"
            found.append((f"{symbol}.cpp", named, machine(host_arch())))
        return found

    def tables(self) -> str:
        """Return the records, and the functions that run them."""
        symbols = {listing.text: symbol for symbol, listing in self.kernels.items()}
        parts = [_fixed("records.cpp")]
        parts += [f'extern "C" void {symbol}(const void*, Word*, void*, Word);\n' for symbol in self.kernels]
        parts.append("\nnamespace {\n")
        for number, record in enumerate(self.records):
            rows = []
            for at, (prepared, arguments, places, offsets) in enumerate(record.launches):
                image, own = prepared.image(arguments), f"{number}_{at}"
                addresses = [(to, places[one], offsets[one]) for one, to in image.addresses.items()]
                spaces = [tuple(map(int, one)) for one in image.workspaces]
                parts.append(_numbers("unsigned char", f"arguments_{own}", [*image.arguments]))
                parts.append(_numbers("Address", f"addresses_{own}", addresses))
                parts.append(_numbers("Space", f"spaces_{own}", spaces))
                assert prepared.executable.listing is not None
                words = f"{symbols[prepared.executable.listing.text]}, {image.blocks}, {image.scratch_bytes}"
                words += f", arguments_{own}, {len(image.arguments)}, addresses_{own}, {len(addresses)}"
                rows.append(f"    {{{words}, spaces_{own}, {len(image.workspaces)}}},\n")
            parts.append(f"const Launch launches_{number}[] = {{\n{''.join(rows) or '    {}'}}};\n")
        rows = [
            f"    {{{one.scratch_bytes}, launches_{at}, {len(one.launches)}}},\n"
            for at, one in enumerate(self.records)
        ]
        parts.append(f"const Record records[] = {{\n{''.join(rows)}}};\n}}  // namespace\n")
        parts.append(RUNNERS)
        return "".join(parts)

    def operations(self) -> str:
        """Return the operations: the choice of a record, new results, and PyTorch's registration."""
        parts, names = [_fixed("operations.cpp")], dict.fromkeys(one.operation for one in self.records)
        registered = []
        for operation in names:
            numbers = [at for at, one in enumerate(self.records) if one.operation is operation]
            parts.append(self._operation(operation, numbers))
            schema = str(operation.overload._schema).partition("::")[2]
            registered.append((operation.name, schema))
        defined = "".join(f"  m.def({json.dumps(schema)});\n" for _, schema in registered)
        implemented = "".join(f'  m.impl("{name}", TORCH_BOX(&{name}_call));\n' for name, _ in registered)
        parts.append(f"\nSTABLE_TORCH_LIBRARY_FRAGMENT({NAMESPACE}, m) {{\n{defined}}}\n")
        parts.append(f"\nSTABLE_TORCH_LIBRARY_IMPL({NAMESPACE}, CPU, m) {{\n{implemented}}}\n")
        return "".join(parts)

    def _operation(self, operation: Operation, numbers: Sequence[int]) -> str:
        """Return the C++ function of one operation, which runs one of the numbered records."""
        arguments = operation.overload._schema.arguments
        declared, tensors = list[str](), list[str]()
        for one in arguments:
            kind = CPP_TYPES.get(str(one.real_type))
            if kind is None:
                raise LaunchError(
                    f"{HERE}: {operation.name} has an argument {one.name} of type {one.real_type}, which "
                    "PyTorch's stable interface does not pass",
                    "matmul",
                )
            declared.append(f"{kind} given_{one.name}")
            if "Tensor" in kind:
                tensors.append(f"given(given_{one.name})")
        name, own = operation.name, [self.records[number] for number in numbers]
        parts, words, cases = ["\nnamespace {\n"], list[str](), list[str]()
        for at, record in enumerate(own):
            pairs = [*zip(arguments, record.arguments, declared, strict=True)]
            arrays = "".join(_array(value) for _, value, kind in pairs if "Tensor" in kind)
            parts.append(f"const Array {name}_{at}[] = {{\n{arrays}}};\n")
            tests = [
                _equals(f"given_{one.name}", value, "Optional" in str(one.real_type))
                for one, value, kind in pairs
                if "Tensor" not in kind
            ]
            words.append(" && ".join(tests) or "true")
            cases.append(f"    case {at}: {{\n{_case(numbers[at], record)}    }}\n")
        results, records = ["Tensor"] * len(own[0].results), [f"{name}_{at}" for at in range(len(own))]
        made = results[0] if len(results) == 1 else f"std::tuple<{', '.join(results)}>"
        parts += [
            f"const Array* const {name}_arrays[] = {{{', '.join(records)}}};\n",
            f"const char* const {name}_texts[] = {{{', '.join(json.dumps(one.text) for one in own)}}};\n\n",
            f"{made} {name}_call({', '.join(declared)}) {{\n",
            f"  const std::vector<const Tensor*> tensors = {{{', '.join(tensors)}}};\n",
            f"  const bool words[] = {{{', '.join(words)}}};\n",
            f'  switch (chosen("{name}", {len(own)}, {name}_arrays, words, tensors, {name}_texts)) {{\n',
            *cases,
            '  }\n  throw std::logic_error("no such record");\n}\n}  // namespace\n',
        ]
        return "".join(parts)


def _empty(one: torch.Tensor) -> str:
    """Return the C++ that makes a tensor with the extents and strides of a result.

    Raises:
        LaunchError: the result is neither contiguous nor a transposition of its rows and heads.
    """
    kind = f"ScalarType::{SCALAR_TYPES[one.dtype]}"
    if one.is_contiguous():
        return f"torch::stable::empty({_list(one.shape)}, {kind})"
    if one.dim() < 3 or not one.transpose(-3, -2).is_contiguous():
        text = f"{HERE}: a result of shape {tuple(one.shape)} has strides {one.stride()}"
        raise LaunchError(text, "a contiguous result")
    made = f"torch::stable::empty({_list(one.transpose(-3, -2).shape)}, {kind})"
    return f"torch::stable::transpose({made}, {one.dim() - 3}, {one.dim() - 2})"


def _case(number: int, record: Record) -> str:
    """Return the C++ that runs a record on new results, and returns these results."""
    made = [*map(_empty, record.results)]
    more = ", ".join(str(_bytes_of(one)) for one in record.temporaries)
    returned = ", ".join(f"results[{at}]" for at in range(len(made)))
    return (
        f"      std::vector<Tensor> results = {{{', '.join(made)}}};\n"
        f"      run({number}, tensors, results, {{{more}}});\n"
        f"      return {returned if len(made) == 1 else f'{{{returned}}}'};\n"
    )


RUNNERS = """
extern "C" __attribute__((visibility("default"))) Word tilewright_record_bytes(Word record, Word threads) {
  return memory_bytes(records[record], threads);
}

extern "C" __attribute__((visibility("default"))) Word tilewright_record_run(
    Word record, char* const* places, void* memory, Word threads, Parallel parallel) {
  return run_record(records[record], places, memory, threads, parallel);
}
"""


def _fixed(name: str) -> str:
    return (_TEXTS / name).read_text(encoding="utf-8")


def _numbers(kind: str, name: str, values: Sequence[Any]) -> str:
    """Return a C++ table of numbers, or of rows of numbers, with at least one element."""
    rows = [str(one) if isinstance(one, int) else f"{{{', '.join(map(str, one))}}}" for one in values]
    return f"const {kind} {name}[] = {{{', '.join(rows) or '{}'}}};\n"


def _list(extents: Sequence[int]) -> str:
    return f"std::vector<int64_t>{{{', '.join(map(str, extents))}}}"


def _array(one: torch.Tensor | None) -> str:
    """Return the C++ description of a tensor argument."""
    if one is None:
        return "    {-1, ScalarType::Float, {}, {}, 1},\n"
    shape, strides = (", ".join(map(str, numbers)) for numbers in (one.shape, one.stride()))
    kind = f"ScalarType::{SCALAR_TYPES[one.dtype]}"
    return f"    {{{one.dim()}, {kind}, {{{shape}}}, {{{strides}}}, {_alignment(one)}}},\n"


def _equals(name: str, value: Any, is_optional: bool) -> str:
    """Return the C++ comparison of an argument with a value."""
    if value is None:
        return f"!{name}.has_value()"
    if isinstance(value, bool):
        text = str(value).lower()
    elif isinstance(value, float):
        text = f"double({value.hex()})" if math.isfinite(value) else f"double({'-' * (value < 0)}INFINITY)"
    elif isinstance(value, torch.dtype):
        text = f"ScalarType::{SCALAR_TYPES[value]}"
    elif isinstance(value, str):
        text = f"std::string({json.dumps(value)})"
    elif isinstance(value, int):
        text = f"{value}ll" if value > -(2**63) else "INT64_MIN"
    else:
        text = _list(value)
    return f"({name}.has_value() && *{name} == {text})" if is_optional else f"{name} == {text}"


# ---------------------------------------------------------------- the library


def export_operations(
    model: Callable[..., Any], inputs: Sequence[tuple[Any, ...]], folder: str | Path, name: str = "operations"
) -> Path:
    """Write a library with which a packaged model computes its operations without Python.

    The model runs once for each tuple of inputs.  Each call of an operation of this package, of a kernel's
    `op` too, becomes a record: the launches for its shapes, dtypes, strides and other arguments.  The library
    registers these operations with PyTorch's dispatcher for processors.  A call without a record is an error
    that lists the records.  The library serves processors of this machine's architecture, and versions of
    PyTorch from this one.

    Args:
        model: a module, or a function of tensors, on the CPU; e.g. ``torch.export.export(...).module()``.
        inputs: for each run the arguments of the model.
        folder: the folder to write: ``libNAME.so``, and its C++ in ``source``.
        name: the library's name.

    Returns:
        The path of the library: for `torch.ops.load_library`, `dlopen`, or the linker of a program.

    Raises:
        LaunchError: no operation was called, a tensor is not on the CPU, or PyTorch computes a part of an
            operation.
        ToolchainError: there is no C++ compiler, or it cannot compile PyTorch's headers.

    Example:
        >>> import tempfile
        >>> import tilewright.torch as tt
        >>> layer = tt.Linear(8, 4, device="cpu")
        >>> export_operations(layer, [(torch.ones(2, 8, device="cpu"),)], tempfile.mkdtemp()).name
        'liboperations.so'
    """
    with torch.no_grad(), WatchedCalls() as seen:
        for one in inputs:
            model(*one)
    if not seen.found:
        raise LaunchError(
            f"{HERE}: the model calls no operation of this package", "tilewright.torch.convert(model) first"
        )
    with torch.no_grad():
        texts = Texts([_recorded(*one) for one in seen.found.values()])
    sources, glue = texts.sources(), texts.operations()
    static, shared = compile_archive([(text, where) for _, text, where in sources])
    _check(texts.records, Library(shared, "of recorded calls"))
    place = Path(folder)
    (place / "source").mkdir(parents=True, exist_ok=True)
    files = {f"source/{file}": text.encode() for file, text, _ in sources}
    files |= {"source/operations.cpp": glue.encode(), f"lib{name}.so": _linked(glue, static)}
    for file, data in files.items():
        with output(place / file) as stream:
            stream.write(data)
    return place / f"lib{name}.so"


def _check(records: Sequence[Record], library: Library) -> None:
    """Run each record, and compare its results with the operation's.

    Raises:
        LaunchError: they differ, because PyTorch computes a part.
    """
    size, run = (
        SIZE(library.address("tilewright_record_bytes")),
        RUN(library.address("tilewright_record_run")),
    )
    for number, record in enumerate(records):
        results = [torch.empty_like(one) for one in record.results]
        for one in (*results, *record.temporaries):
            _in_bytes(one).fill_(POISON)
        known = [*tensors_of(record.arguments), *results, *record.temporaries]
        places = (ctypes.c_void_p * (len(known) + 1))(*(one.data_ptr() for one in known))
        stuck = run(number, places, ctypes.create_string_buffer(size(number, 1)), 1, None)
        for own, one in zip(results, record.results, strict=True):
            if stuck or not torch.equal(_in_bytes(own), _in_bytes(one)):
                raise LaunchError(
                    f"{HERE}: the launches of {record.operation.name} alone do not compute the result of "
                    f"{record.text}, because PyTorch computes a part of it",
                    "the operation without packed sequences, and without rows of no group",
                )


def _in_bytes(one: torch.Tensor) -> torch.Tensor:
    """Return the bytes of a tensor without gaps, in the order of its memory."""
    return one.as_strided((one.numel(),), (1,)).view(torch.uint8)


SIZE = ctypes.CFUNCTYPE(ctypes.c_longlong, ctypes.c_longlong, ctypes.c_longlong)
RUN = ctypes.CFUNCTYPE(
    ctypes.c_longlong, ctypes.c_longlong, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_longlong, ctypes.c_void_p
)
"""Signatures of the functions that run a record."""


def _linked(glue: str, static: bytes) -> bytes:
    """Compile the operations with PyTorch's headers, and link them with the records.

    Raises:
        ToolchainError: there is no compiler that links with PyTorch's libraries.
        CompileError: the compiler refused the text or the headers.
    """
    found = [one for one in find_toolchains() if one.name != "zig"]
    if not found:
        raise ToolchainError(
            "libraries for PyTorch need g++ or clang++, and neither is on PATH", "the system's package of g++"
        )
    root = Path(torch.__file__).parent
    with tempfile.TemporaryDirectory(prefix="tilewright-", ignore_cleanup_errors=True) as folder:
        Path(folder, "operations.cpp").write_text(glue, encoding="utf-8")
        Path(folder, "records.a").write_bytes(static)
        words = ["-std=c++17", "-O1", "-fPIC", "-shared", "-isystem", str(root / "include"), "operations.cpp"]
        words += ["records.a", f"-L{root / 'lib'}", "-ltorch_cpu", "-o", "operations.so"]
        run_compiler([*choose(found).compiler, *words], folder, "the operations of PyTorch", glue)
        return Path(folder, "operations.so").read_bytes()
