"""C++ text of one exported kernel: checks of its arrays, sizes of a launch, and the argument buffer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property

from tilewright.dtypes import DType
from tilewright.errors import LaunchError
from tilewright.ir.deadlocks import first_wait
from tilewright.ir.kernel import Argument, Derived, Extent, Kernel, ScalarParam, SizeParam, Stride, Workspace
from tilewright.lang.program import Parameter
from tilewright.lang.specs import TensorSpec
from tilewright.runtime.arrays import ArrayInfo, pairs_of
from tilewright.runtime.binding import Binding, bind
from tilewright.runtime.executable import Executable, argument_layout
from tilewright.symbolic.nodes import Int, Sym
from tilewright.symbolic.rebuilding import symbols
from tilewright.targets.cfamily import C_SPELLER
from tilewright.targets.target import HIP, HOST

MOST_RANK = 8
"""Most dimensions of a `tilewright_array`."""

MOST_SIZES, MOST_SPACES, MOST_BUFFER_BYTES = 96, 8, 4096
"""Most sizes, workspaces and bytes of arguments of one launch, as in `text/host.cpp`."""

MOST_DEVICES, MOST_ARGUMENTS = 64, 128
"""Most devices of one machine and arguments of one launch, as in `text/driver.cpp`."""

C_TYPES = {
    "f64": "double",
    "f32": "float",
    "i64": "long long",
    "u64": "unsigned long long",
    "i32": "int",
    "u32": "unsigned",
    "i16": "short",
    "u16": "unsigned short",
    "i8": "signed char",
    "u8": "unsigned char",
    "b1": "unsigned char",
    "bool": "unsigned char",
}
"""The C type of a number, by its dtype. Other floats are passed as their bits."""

_WORDS = """
alignas alignof and asm auto bool break case catch char class compl const constexpr continue
decltype default delete do double else enum explicit export extern false float for friend goto
if inline int long mutable namespace new noexcept not nullptr operator or private protected
public register requires return short signed sizeof static struct switch template this throw
true try typedef typeid typename union unsigned using virtual void volatile while xor workspace
workspace_bytes pool stream bytes
"""

KEYWORDS = frozenset(_WORDS.split())
"""Names that no parameter of a C function may have."""

_SPELLER = replace(
    C_SPELLER,
    floordiv=lambda a, b, _: f"floor_div({a}, {b})",
    mod=lambda a, b, _: f"floor_mod({a}, {b})",
    name=lambda sym: f"s_{sym.name}",
)
"""Writes the sizes of a launch as C++ expressions of 64 bits."""


def c_name(name: str) -> str:
    """Return a name that a parameter of a C function may have.

    Example:
        >>> c_name("A"), c_name("default")
        ('A', 'default_')
    """
    return f"{name}_" if name in KEYWORDS else name


def c_type(kind: DType) -> str:
    """Return the C type of a number.

    Example:
        >>> from tilewright.dtypes import bf16, f32
        >>> c_type(f32), c_type(bf16)
        ('float', 'unsigned short')
    """
    return C_TYPES.get(kind.name, "unsigned short" if kind.bits == 16 else "unsigned char")


@dataclass(frozen=True)
class Exported:
    """One kernel for one class of arrays and one architecture.

    Args:
        executable: the kernel, with its text.
        parameters: the parameters of the author's function.
        shapes: the extents that it was exported for, by parameter.
        symbol: a name for its functions, unique in the folder.
    """

    executable: Executable
    parameters: tuple[Parameter, ...]
    shapes: Mapping[str, tuple[int, ...]]
    symbol: str

    @property
    def specs(self) -> Mapping[str, TensorSpec]:
        """The class of each array, by parameter."""
        return self.executable.specs

    def is_like(self, other: Exported) -> bool:
        """Return whether another kernel has the same classes and the same schedule."""
        return self.specs == other.specs and self.executable.schedule == other.executable.schedule

    @property
    def kernel(self) -> Kernel:
        """The lowered kernel."""
        assert self.executable.listing is not None, "the reference is not exported"
        return self.executable.listing.kernel

    @cached_property
    def arrays(self) -> tuple[str, ...]:
        """Names of the arrays, in the order of the author's parameters."""
        return tuple(one.name for one in self.parameters if one.kind == "tensor")

    @cached_property
    def spaces(self) -> tuple[Workspace, ...]:
        """The workspaces that a launch passes."""
        return self.kernel.workspaces

    @property
    def zeroed(self) -> int:
        """A bit for each workspace that begins with zeros, the first one lowest."""
        return sum(1 << at for at, space in enumerate(self.spaces) if space.zeroed or space.resets)

    @cached_property
    def buffer_bytes(self) -> int:
        """Bytes of the argument buffer."""
        return argument_layout(self.kernel, self.parameters).size

    @property
    def demands(self) -> int:
        """Number of requirements of the class: factors of 2 in divisors and alignments, and flags."""
        found = 0
        for spec in self.specs.values():
            divisors = (*spec.extent_divisors, *spec.stride_divisors, spec.align)
            found += sum((divisor & -divisor).bit_length() for divisor in divisors)
            found += (spec.unit_dim is not None) + (not spec.wide) + (not spec.signed)
        return found

    @cached_property
    def integers(self) -> dict[str, int]:
        """A value of each integer: its default, or 1."""
        given = [one for one in self.parameters if one.kind == "index"]
        return {one.name: 1 if one.default is None else int(one.default) for one in given}

    def binding(self, shapes: Mapping[str, tuple[int, ...]]) -> Binding:
        """Return the sizes of a launch on arrays of these extents, given by parameter."""
        return bind(self.kernel, infos_of(self.specs, shapes), self.integers)

    def text(self) -> str:
        """Return the functions that check a call and write its argument buffer.

        Raises:
            LaunchError: the kernel has more dimensions, sizes, workspaces or arguments than the launch code.
        """
        kernel, layout = self.kernel, argument_layout(self.kernel, self.parameters)
        for what, count, most in (
            ("dimensions", max((spec.rank for spec in self.specs.values()), default=0), MOST_RANK),
            ("sizes", len(kernel.sizes), MOST_SIZES),
            ("workspaces", len(self.spaces), MOST_SPACES),
            ("arguments", len(layout.offsets) + len(layout.maps), MOST_ARGUMENTS),
            ("bytes of arguments", self.buffer_bytes, MOST_BUFFER_BYTES),
        ):
            if count > most:
                raise LaunchError(
                    f"kernel {kernel.name} has {count} {what}; exported launch code takes at most {most}"
                )
        name = self.symbol
        return (
            f"// {self.executable!r}\n"
            f"int bind_{name}(const Call& call, Bound& bound) {{\n{self._bind()}  return 0;\n}}\n\n"
            f"void fill_{name}(const Call& call, const Bound& bound, char* workspace,\n"
            f"    unsigned char* buffer) {{\n"
            f"{self._fill()}}}\n\n"
        )

    def _bind(self) -> str:
        kernel, place = self.kernel, {name: at for at, name in enumerate(self.arrays)}
        integers = [one.name for one in self.parameters if one.kind == "index"]
        spell, lines = _SPELLER.int, list[str]()
        rows = list[str]()
        for at, name in enumerate(self.arrays, 1):
            spec = self.specs[name]
            flags = (spec.wide, spec.signed, name in kernel.written_params)
            words = ", ".join("true" if flag else "false" for flag in flags)
            unit = -1 if spec.unit_dim is None else spec.unit_dim
            extents, strides = (
                ", ".join(map(str, divisors)) for divisors in (spec.extent_divisors, spec.stride_divisors)
            )
            numbers = f"{at}, {spec.rank}, {unit}, {spec.align}, {spec.dtype.bits}"
            rows.append(f"      {{{numbers}, {words}, {{{extents}}}, {{{strides}}}}}")
        lines.append("static const ArrayClass its[] = {\n" + ",\n".join(rows) + "};")
        lines += [
            f"if (int wrong = check(its[{at}], call.arrays[{at}])) return wrong;"
            for at in range(len(self.arrays))
        ]
        known = set[Sym]()
        for tensor in kernel.tensors:
            at = place[tensor.name]
            for dim, extent in enumerate(tensor.tensor.shape):
                given = f"call.arrays[{at}]->shape[{dim}]"
                refused = f"return error(TILEWRIGHT_EXTENTS, {at + 1});"
                if isinstance(extent, Sym) and extent not in known:
                    lines.append(f"const Wide s_{extent.name} = {given};")
                    known.add(extent)
                elif isinstance(extent, Sym | int):
                    lines.append(f"if ({given} != {spell(extent)}) {refused}")
        for pair in self._pairs():
            lines.append(
                f"if (int wrong = check_apart(its[{pair[0]}], call.arrays[{pair[0]}], its[{pair[1]}], "
                f"call.arrays[{pair[1]}], {'true' if pair[2] else 'false'})) return wrong;"
            )
        for param in kernel.sizes:
            source = param.source
            if param.sym in known or isinstance(source, Derived):
                continue
            if isinstance(source, Argument):
                value = f"call.integers[{integers.index(source.name)}]"
            elif isinstance(source, Extent | Stride):
                field = "shape" if isinstance(source, Extent) else "strides"
                value = f"call.arrays[{place[source.tensor]}]->{field}[{source.dim}]"
            lines.append(f"const Wide s_{param.sym.name} = {value};")
            known.add(param.sym)
        for param in kernel.sizes:
            if isinstance(param.source, Derived):
                lines.append(f"const Wide s_{param.sym.name} = {spell(param.source.value)};")
                known.add(param.sym)
        limit = "return error(TILEWRIGHT_LIMIT, 0);"
        for guard in kernel.guards:
            if symbols(guard.condition) <= known:
                # A backslash at the end of a comment would continue it on the next line.
                message = " ".join(guard.message.replace("\\", "/").split())
                lines.append(f"if (!({_SPELLER.cond(guard.condition)})) {limit}  // {message}")
        grid: list[Int] = [axis.extent for axis in kernel.grid]
        lines += [
            f"bound.grid[{axis}] = {spell(extent)};" for axis, extent in enumerate([*grid, 1, 1, 1][:3])
        ]
        lines.append(f"if (bound.grid[0] < 0 || bound.grid[1] < 0 || bound.grid[2] < 0) {limit}")
        lines += [f"if (bound.grid[{one.axis}] % {one.extent}) {limit}" for one in kernel.cluster]
        for at, space in enumerate(self.spaces):
            bits = space.value.dtype.bits
            lines.append(f"if (!bound.reserve({at}, {spell(space.elems)}, {bits})) {limit}")
        lines += [f"bound.sizes[{at}] = s_{size.sym.name};" for at, size in enumerate(kernel.sizes)]
        return "".join(f"  {line}\n" for line in lines)

    def _pairs(self) -> list[tuple[int, int, bool]]:
        """Return pairs of arrays that must share no memory, and whether they may be one array.

        Each dimension gets extents and strides of its own, so that only arrays that are read in the order
        of the stored dimensions count as one.
        """
        infos = {}
        for name in self.arrays:
            spec = self.specs[name]
            dims = range(spec.rank)
            shape, strides = tuple(3 + dim for dim in dims), tuple(10**dim for dim in dims)
            infos[name] = ArrayInfo(16, shape, strides, spec.dtype, HOST, False, None)
        pairs = pairs_of(self.executable.flow, infos)
        return [(one.stored, one.other, one.in_place) for one in pairs]

    def _fill(self) -> str:
        kernel, lines = self.kernel, list[str]()
        layout = argument_layout(kernel, self.parameters)
        offsets = dict(layout.tensors)
        lines += [
            f"put<const void*>(buffer + {offset}, call.arrays[{at}]->address);"
            for at, offset in offsets.items()
        ]
        scalars = [one.name for one in self.parameters if one.kind == "scalar"]
        sizes = {size.sym: at for at, size in enumerate(kernel.sizes)}
        spaces = {space.value.name: at for at, space in enumerate(self.spaces)}
        for param, offset in zip(layout.params, layout.offsets, strict=True):
            if isinstance(param, SizeParam):
                kind = "Wide" if param.bits == 64 else "int"
                lines.append(f"put<{kind}>(buffer + {offset}, ({kind})bound.sizes[{sizes[param.sym]}]);")
            elif isinstance(param, Workspace):
                at = spaces[param.value.name]
                lines.append(f"put<void*>(buffer + {offset}, workspace + bound.offsets[{at}]);")
            elif isinstance(param, ScalarParam):
                at, size = scalars.index(param.value.name), param.value.dtype.bytes
                lines.append(f"__builtin_memcpy(buffer + {offset}, call.numbers[{at}], {size});")
        return "".join(f"  {line}\n" for line in lines)


def strides_of(spec: TensorSpec, shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return the strides of an example array of a class, with the smallest gaps that its divisors allow.

    Example:
        >>> from tilewright.dtypes import f16
        >>> strides_of(TensorSpec(f16, 2, 1, (1, 1), (8, 1), 16, False), (4, 37))
        (40, 1)
    """
    strides, step = [0] * spec.rank, 1
    order = [dim for dim in reversed(range(spec.rank)) if dim != spec.unit_dim]
    for dim in ([] if spec.unit_dim is None else [spec.unit_dim]) + order:
        divisor = 1 if dim == spec.unit_dim else spec.stride_divisors[dim]
        strides[dim] = step = -(-step // divisor) * divisor
        step *= max(shape[dim], 1)
    return tuple(strides)


def infos_of(specs: Mapping[str, TensorSpec], shapes: Mapping[str, tuple[int, ...]]) -> dict[str, ArrayInfo]:
    """Return the metadata of example arrays of some classes."""
    return {
        name: ArrayInfo(256, shapes[name], strides_of(spec, shapes[name]), spec.dtype, HOST, False, None)
        for name, spec in specs.items()
    }


# ---------------------------------------------------------------- machine code for GPUs

MAP_TYPES = {"f16": 6, "bf16": 9, "f32": 7, "f64": 8, "i32": 3}
"""Numbers of `CUtensorMapDataType`; types of one byte are 0.

Source: CUDA Driver API, "Tensor Map Object Management".
"""

LINE_BYTES = 64
"""Bytes of machine code in one line of C++ text."""


def image_of(exported: Exported) -> bytes:
    """Return the machine code that the driver loads: a cubin, or a code object."""
    made: bytes = exported.executable.handle.image()
    return made


def image_text(exported: Exported) -> str:
    """Return the machine code of a kernel for a GPU as C++, with everything that its launch needs."""
    kernel, name = exported.kernel, exported.symbol
    listing = exported.executable.listing
    assert listing is not None
    layout = argument_layout(kernel, exported.parameters)
    data = image_of(exported)
    lines = [data[at : at + LINE_BYTES] for at in range(0, len(data), LINE_BYTES)]
    text = "\n".join('    "' + "".join(f"\\{byte:03o}" for byte in line) + '"' for line in lines)
    offsets = (*layout.offsets, *(offset for _, offset in layout.maps))
    rows = []
    for (at, _), one in zip(layout.maps, kernel.tensor_maps, strict=True):
        kind = 0 if one.dtype.bytes == 1 else MAP_TYPES.get(one.dtype.name)
        if kind is None:
            raise LaunchError(f"TMA does not support {one.dtype}")
        rank, swizzled = exported.specs[one.tensor].rank, "true" if one.is_swizzled else "false"
        order, box, steps = (", ".join(map(str, numbers)) for numbers in (one.order, one.box, one.steps))
        rows.append(f"    {{{at}, {kind}, {rank}, {{{order}}}, {{{box}}}, {{{steps}}}, {swizzled}}}")
    maps = ",\n".join(rows)
    cluster = [1, 1, 1]
    for member in kernel.cluster:
        cluster[member.axis] = member.extent
    example = exported.binding(exported.shapes)
    sizes = {size.sym: example.sizes[size.sym.name] for size in kernel.sizes}
    together = first_wait(kernel, sizes) is not None
    is_hip = exported.executable.target == HIP.name
    flags = ", ".join("true" if flag else "false" for flag in (together, kernel.waits_for_prior_grid))
    first = layout.maps[0][1] if layout.maps else 0
    return f"""alignas(64) const unsigned char bytes_{name}[] =
{text};
const int offsets_{name}[] = {{{", ".join(map(str, (*offsets, 0)))}}};
const Map maps_{name}[] = {{
{maps or "    {}"}
}};
void* cells_{name}[{MOST_DEVICES if is_hip else 1}];
Bytes allowed_{name};
const Image image_{name} = {{
    bytes_{name}, "{listing.entry}", {kernel.threads}, {0 if is_hip else listing.shared_bytes},
    {{{", ".join(map(str, cluster))}}}, {flags}, {exported.zeroed}, {len(offsets)}, offsets_{name},
    {len(layout.maps)}, maps_{name}, {first}, cells_{name}, &allowed_{name}}};

"""
