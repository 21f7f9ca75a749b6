"""Several kernels for AMD GPUs in one listing, and so in one code object."""

from __future__ import annotations

from collections.abc import Sequence

from tilewright.errors import LaunchError
from tilewright.runtime import amdgcn
from tilewright.runtime.cache import Cache, key
from tilewright.runtime.executable import Executable
from tilewright.targets.target import HIP


def listing_together(executables: Sequence[Executable]) -> str:
    """The listing of several kernels, which one code object is assembled from; each keeps its name.

    Args:
        executables: compiled for one architecture of AMD's, under names of their own.

    Raises:
        LaunchError: two have the same name, or they are for several architectures.
        CompileError: the compiler refused the text.
    """
    names = [made.kernel.name for made in executables]
    archs = sorted({made.arch for made in executables})
    if len({*names}) < len(names) or len(archs) != 1:
        raise LaunchError(
            f"kernels {', '.join(names)} for {', '.join(archs)} in one code object; nearest legal choice: "
            "kernels of different names, for one architecture"
        )
    # Pieces that several kernels need have one name in each text: a namespace keeps them apart.
    parts = [f"namespace part_{at} {{\n{made.source}}}\n" for at, made in enumerate(executables)]
    text, toolchain = "\n".join(parts), amdgcn.find_toolchain(archs[0])
    meta: dict[str, object] = {"kernel": " ".join(names), "target": HIP.name, "arch": archs[0]}

    def build() -> bytes:
        return amdgcn.compile_text(text, archs[0], names[0], toolchain).encode()

    address = key([text, toolchain.identity, HIP.name, archs[0]])
    return Cache.default().get_or_build(address, ".s", build, meta).data.decode()
