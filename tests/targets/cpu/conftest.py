"""Compile and run kernels on hostile memory: scratch is NaN, and writes outside of arrays are found."""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest

from tilewright.ir import verify
from tilewright.ir.kernel import Kernel, ScalarParam, SizeParam, TensorParam
from tilewright.runtime import native
from tilewright.runtime.arrays import describe
from tilewright.runtime.binding import argument_codes, bind
from tilewright.runtime.libraries import Library
from tilewright.targets import cpu
from tilewright.targets.rules import EmittedText

POISON = 0xFF  # NaN in every float format, -1 in every integer
GUARD_BYTES = 4096


class Machine:
    """Runs kernels on one thread; each process compiles each text once."""

    def __init__(self) -> None:
        self._libraries: dict[tuple[str, str], Library] = {}

    def library(self, text: str, toolchain: native.Toolchain) -> Library:
        key = (toolchain.name, text)
        if key not in self._libraries:
            self._libraries[key] = Library(native.compile_library(text, toolchain))
        return self._libraries[key]

    def __call__(
        self,
        kernel: Kernel,
        arguments: Mapping[str, Any],
        *,
        arch: str | None = None,
        toolchain: native.Toolchain | None = None,
    ) -> EmittedText:
        """Check, lower, compile and run; arrays among the arguments are read and written in place."""
        arch = arch or native.host_arch()
        assert verify.violations(kernel) == []
        assert cpu.violations(kernel, arch) == []
        listing = cpu.emit(kernel, arch)
        assert verify.violations(listing.kernel) == [], "the lowered kernel is a kernel"
        arrays = {name: describe(value) for name, value in arguments.items() if isinstance(value, np.ndarray)}
        indices = {name: value for name, value in arguments.items() if name not in arrays}
        bound = bind(kernel, arrays, indices)
        workspaces = []
        values: list[Any] = []
        for param in listing.kernel.params:
            if isinstance(param, SizeParam):
                values.append(bound.sizes[param.sym.name])
            elif isinstance(param, TensorParam):
                values.append(arrays[param.value.name].pointer)
            elif isinstance(param, ScalarParam):
                values.append(indices[param.value.name])
            else:
                size = bound.workspaces[param.value.name] * param.value.dtype.bytes
                workspaces.append(np.full(size, 0 if param.zeroed else POISON, np.uint8))
                values.append(workspaces[-1].ctypes.data)
        form = "@" + "".join(argument_codes(listing.kernel))
        arguments = ctypes.create_string_buffer(struct.pack(form, *values) or b"\0")
        scratch = np.full(listing.shared_bytes + 2 * GUARD_BYTES + 64, POISON, np.uint8)
        start = scratch.ctypes.data + GUARD_BYTES
        start += -start % 64
        counter = ctypes.c_longlong()
        function = self.library(listing.text, toolchain or native.find_toolchain()).function(listing.entry)
        function(ctypes.addressof(arguments), ctypes.addressof(counter), start, bound.blocks)
        before = start - scratch.ctypes.data
        after = before + listing.shared_bytes
        assert (scratch[:before] == POISON).all(), "written before the scratch memory"
        assert (scratch[after:] == POISON).all(), "written past the scratch memory"
        return listing


@pytest.fixture(scope="session")
def machine() -> Callable[..., EmittedText]:
    return Machine()


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "toolchain" in metafunc.fixturenames:
        metafunc.parametrize("toolchain", native.find_toolchains(), ids=str)
    if "arch" in metafunc.fixturenames:
        metafunc.parametrize("arch", sorted(cpu.PROCESSORS))
