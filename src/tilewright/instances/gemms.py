"""Device GEMMs of matrix instructions: XDL with waves of 64 threads, WMMA with waves of 32, and traits.

`DeviceGemm` has the public methods of an instance; its kernels are named by their symbols.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from tilewright.argument_checks import Count
from tilewright.calls import launches
from tilewright.dtypes import DType, dtype
from tilewright.dtypes import dtype as dtype_named
from tilewright.errors import DTypeError, LaunchError, close_to, shown
from tilewright.instances.instance_rules import rules_of_instances
from tilewright.instances.problem import PACKED, GemmProblem, packed, rules_of_problems
from tilewright.instances.template import Products, Template
from tilewright.instances.to_schedule import notes_of, place_of, schedule_of
from tilewright.instances.words import COLUMN, ROW, Checks, machines
from tilewright.ir.mma import TiledMma
from tilewright.runtime.kernel import Bound, Kernel
from tilewright.schedule.schedule import Schedule
from tilewright.targets.matrix_cores import MATRIX_CORES, MFMA
from tilewright.targets.target import HIP


@dataclass(frozen=True, kw_only=True, repr=False)
class DeviceGemm(Template):
    """``C = c_op(a_op(A) @ b_op(B))``: one tuned kernel, by every parameter of its template."""

    @launches
    def problem(
        self,
        m: Count,
        n: Count,
        k: Count,
        stride_a: int = PACKED,
        stride_b: int = PACKED,
        stride_c: int = PACKED,
    ) -> GemmProblem:
        """Return a problem whose matrices have the instance's layouts.

        Args:
            m: rows of A and C.
            n: columns of B and C.
            k: columns of A and rows of B.
            stride_a: elements from one row of A to the next, or from one column if A is column-major; -1: the
                length of a row or column.
            stride_b: the same for B.
            stride_c: the same for C.

        Raises:
            LaunchError: an extent is below 1.
        """
        return GemmProblem(
            packed(m, k, self.a_layout, stride_a),
            packed(k, n, self.b_layout, stride_b),
            packed(m, n, self.c_layout, stride_c),
        )

    @launches
    def check(self, problem: GemmProblem | Sequence[int] | None = None, arch: str = "") -> Checks:
        """Check the instance, and whether it can compute a problem.

        Args:
            problem: extents ``(m, n, k)``, with or without the strides of `problem`, or a `GemmProblem`;
                None: only the instance is checked.
            arch: the architecture, such as ``"gfx1151"``; default: the limits of all architectures.

        Returns:
            A row for each rule, with the value, the legal values, and the nearest legal choice.

        Raises:
            LaunchError: the problem has another form.
        """
        rows = list(rules_of_instances(self, arch))
        if problem is not None:
            if not isinstance(problem, GemmProblem):
                if len(problem) not in (3, 6):
                    text = f"check(problem={shown(problem)}): {len(problem)} integers"
                    raise LaunchError(text, "(m, n, k), or (m, n, k, stride_a, stride_b, stride_c)")
                problem = self.problem(*problem)
            rows += rules_of_problems(self, problem)
        return Checks(self.type_string, rows)

    @launches
    def schedule(self, arch: str, b_memory: DType | str | None = None) -> Schedule:
        """Return the schedule of the instance's tiles, as close to the instance as the architecture permits.

        The tile, the depth of a step, the waves, the prefetched steps, operands that skip shared memory and
        the order of tiles are the instance's; `notes` lists the differences.  If the architecture has the
        instance's instructions, the schedule uses them, interleaves the repeats of waves, and keeps K1
        neighbours together, with the extra row; extents that are not padded must then be whole tiles.

        Args:
            arch: an architecture, such as ``"gfx1151"``, or a target, such as ``"cpu"``.
            b_memory: the dtype of B in memory, if it is widened before shared memory, such as ``"f8e4m3"``.

        Raises:
            LegalityError: the instance is not legal; lists all reasons.
            LaunchError: the architecture is unknown.
        """
        place = place_of(arch)
        self.check(arch=arch if arch in machines() else "").require()
        try:
            wide = None if b_memory is None else dtype(b_memory)
        except DTypeError as error:
            raise DTypeError(f"DeviceGemm.schedule(b_memory=...): {error}") from None
        return schedule_of(self, place, wide)

    @launches
    def notes(self, arch: str) -> tuple[str, ...]:
        """Return the differences between the instance and its `schedule`, each beginning with the field.

        Args:
            arch: an argument of `schedule`.
        """
        return tuple(notes_of(self, place_of(arch)))


# ---------------------------------------------------------------- kernels named by their symbols


def bound_to(
    instance: DeviceGemm, kernel: Kernel, arch: str, b_memory: DType | str | None = None, **constants: Any
) -> Bound:
    """Bind a dataflow kernel to the schedule of an instance, with the instance's symbol as its name.

    Args:
        instance: the instance.
        kernel: the kernel.
        arch: an argument of `DeviceGemm.schedule`.
        b_memory: an argument of `DeviceGemm.schedule`.
        constants: constants of the kernel.
    """
    program = copy.copy(kernel.program)
    program.name = instance.symbol
    return Kernel(program).bind(schedule=instance.schedule(arch, b_memory), **constants)


DEPTHS: dict[str, dict[int, int]] = {
    "f16": {32: 8, 16: 16},
    "bf16": {32: 8, 16: 16},
    "f32": {32: 2, 16: 4},
    "f64": {16: 4},
    "i8": {32: 8, 16: 16},
    "f8e4m3": {32: 16, 16: 32},
    "f8e5m2": {32: 16, 16: 32},
}
"""Depth K of an instruction, by the dtype of its operands and its extent along M and N."""

SUMS = {"i8": "i32", "f64": "f64"}
"""Dtypes of sums other than f32."""


@launches
@dataclass(frozen=True, kw_only=True, repr=False)
class DeviceGemmXdl(DeviceGemm):
    """``C = c_op(a_op(A) @ b_op(B))`` by XDL: an instance of ``DeviceGemm_Xdl_CShuffle``.

    Every parameter of the template is a field of the same name in small letters: ``MPerBlock`` is
    ``m_per_block``.  The parameters of a transfer form one value, and so do those of the store.

    Args:
        a_dtype: element type of A (M, K); dtypes are names, or values such as `tw.f16`.
        b_dtype: element type of B (K, N).
        acc_dtype: dtype of sums.
        c_shuffle_dtype: dtype of the result in shared memory.
        c_dtype: element type of C (M, N).
        block_size: threads of a block.
        m_per_block: rows of C that a block computes.
        n_per_block: columns of C that it computes.
        k_per_block: depth of a step along K.
        ak1: neighbours along K of A that stay together in shared memory.
        bk1: the same for B.
        m_per_xdl: rows of an instruction.
        n_per_xdl: columns of an instruction.
        m_xdl_per_wave: instructions of a wave along M.
        n_xdl_per_wave: instructions of a wave along N.
        a_block_transfer: the copy of tiles of A.
        b_block_transfer: the copy of tiles of B.
        c_shuffle: the store of the result.
        a_layout: ``"row"`` or ``"column"``: the contiguous dimension of A.
        b_layout: the same for B.
        c_layout: the same for C.
        a_element_op: the name of the function of each element of A.
        b_element_op: the same for B.
        c_element_op: the same for the result.
        gemm_specialization: which of M, N and K are padded: ``"Default"`` none, ``"MNKPadding"`` all.
        num_prefetch: steps that are loaded into registers while another one is multiplied.
        loop_scheduler: ``"Default"`` or ``"Interwave"``.
        pipeline_version: ``"v1"`` or ``"v2"``.

    Raises:
        LaunchError: a field of another type, or an illegal order.
        DTypeError: a dtype is unknown.

    Example:
        >>> import tilewright as tw
        >>> half = dict.fromkeys(("a_dtype", "b_dtype", "c_shuffle_dtype", "c_dtype"), tw.f16)
        >>> transfer = tw.ck.BlockTransfer(
        ...     thread_cluster_lengths=(4, 64, 1), thread_cluster_arrange_order=(1, 0, 2),
        ...     src_access_order=(1, 0, 2), src_vector_dim=2, src_scalar_per_vector=8,
        ...     dst_scalar_per_vector_k1=8, lds_extra=True,
        ... )
        >>> instance = tw.ck.DeviceGemmXdl(
        ...     **half, acc_dtype=tw.f32, block_size=256, m_per_block=256, n_per_block=128, k_per_block=32,
        ...     ak1=8, bk1=8, m_per_xdl=32, n_per_xdl=32, m_xdl_per_wave=4, n_xdl_per_wave=2,
        ...     a_block_transfer=transfer, b_block_transfer=transfer, b_layout="column",
        ...     c_shuffle=tw.ck.CShuffle(
        ...         m_repeat_per_shuffle=1, n_repeat_per_shuffle=1, cluster_lengths=(1, 32, 1, 8),
        ...         scalar_per_vector=8,
        ...     ),
        ... )
        >>> print(instance.type_string.partition(" LoopScheduler")[0])
        DeviceGemm_Xdl_CShuffle<Default, 256, 256, 128, 32, 8, 8, 32, 32, 4, 2, 8, 8, 1, 1>
        >>> instance.waves, instance.threads, instance.lds_bytes
        ((2, 2), 256, 24672)
        >>> instance.check((512, 512, 512), arch="gfx942").ok
        True
    """

    matrix = "xdl"
    wave_size = 64
    repeat_fields = ("m_xdl_per_wave", "n_xdl_per_wave")
    k1_fields = ("ak1", "bk1")
    products: ClassVar[Products] = {
        (name, name, SUMS.get(name, "f32")): tuple((size, size) for size in sizes)
        for name, sizes in DEPTHS.items()
    }

    ak1: Count
    bk1: Count
    m_per_xdl: Count
    n_per_xdl: Count
    m_xdl_per_wave: Count
    n_xdl_per_wave: Count

    @property
    def type_string(self) -> str:
        """The text that the instance's own program prints."""
        shuffle = self.c_shuffle
        numbers = (
            *(self.block_size, *self.tile, self.ak1, self.bk1, self.m_per_xdl, self.n_per_xdl),
            *(self.m_xdl_per_wave, self.n_xdl_per_wave),
            *(transfer.src_scalar_per_vector for transfer in self.transfers),
            *(shuffle.m_repeat_per_shuffle, shuffle.n_repeat_per_shuffle),
        )
        return (
            f"DeviceGemm_Xdl_CShuffle<{self.gemm_specialization}, {', '.join(map(str, numbers))}> "
            f"LoopScheduler: {self.loop_scheduler}, PipelineVersion: {self.pipeline_version}"
        )

    @property
    def instruction(self) -> tuple[int, int, int]:
        """Extents (m, n, k) of one matrix instruction; depth 0 if it does not exist."""
        depth = DEPTHS.get(self.dtypes[0].name, {}).get(self.m_per_xdl, 0)
        return self.m_per_xdl, self.n_per_xdl, depth


# ---------------------------------------------------------------- WMMA


WIDEST_BYTES = 16
"""Bytes of a thread's widest access."""

SIZES = ((16, 16),)


@launches
@dataclass(frozen=True, kw_only=True, repr=False)
class DeviceGemmWmma(DeviceGemm):
    """``C = c_op(a_op(A) @ b_op(B))`` by WMMA: an instance of ``DeviceGemmWmma_CShuffle``.

    Every parameter of the template is a field of the same name in small letters: ``MPerBlock`` is
    ``m_per_block``.  The parameters of a transfer form one value, and so do those of the store.

    Args:
        a_dtype: element type of A (M, K); dtypes are names, or values such as `tw.f16`.
        b_dtype: element type of B (K, N).
        acc_dtype: dtype of sums.
        c_shuffle_dtype: dtype of the result in shared memory.
        c_dtype: element type of C (M, N).
        block_size: threads of a block.
        m_per_block: rows of C that a block computes.
        n_per_block: columns of C that it computes.
        k_per_block: depth of a step along K.
        k1: neighbours along K that stay together in shared memory.
        m_per_wmma: rows of an instruction.
        n_per_wmma: columns of an instruction.
        m_repeat: instructions of a wave along M.
        n_repeat: instructions of a wave along N.
        a_block_transfer: the copy of tiles of A.
        b_block_transfer: the copy of tiles of B.
        c_shuffle: the store of the result.
        a_layout: ``"row"`` or ``"column"``: the contiguous dimension of A.
        b_layout: the same for B.
        c_layout: the same for C.
        a_element_op: the name of the function of each element of A.
        b_element_op: the same for B.
        c_element_op: the same for the result.
        gemm_specialization: which of M, N and K are padded: ``"Default"`` none, ``"MNKPadding"`` all.
        num_prefetch: steps that are loaded into registers while another one is multiplied.
        loop_scheduler: ``"Default"`` or ``"Interwave"``.
        pipeline_version: ``"v1"`` or ``"v2"``.
        a_enable_lds: whether A goes through shared memory; None: by the rule of `enable_lds`.
        b_enable_lds: the same for B.

    Raises:
        LaunchError: a field of another type, or an illegal order.
        DTypeError: a dtype is unknown.

    Example:
        >>> import tilewright as tw
        >>> half = dict.fromkeys(("a_dtype", "b_dtype", "c_shuffle_dtype", "c_dtype"), tw.f16)
        >>> instance = tw.ck.DeviceGemmWmma(
        ...     **half, acc_dtype=tw.f32, block_size=256, m_per_block=128, n_per_block=256, k_per_block=64,
        ...     k1=8, m_per_wmma=16, n_per_wmma=16, m_repeat=4, n_repeat=4,
        ...     a_block_transfer=tw.ck.BlockTransfer(
        ...         thread_cluster_lengths=(4, 64, 1), thread_cluster_arrange_order=(1, 0, 2),
        ...         src_access_order=(1, 0, 2), src_vector_dim=2, src_scalar_per_vector=8,
        ...         dst_scalar_per_vector_k1=8, lds_extra=True,
        ...     ),
        ...     b_block_transfer=tw.ck.BlockTransfer(
        ...         thread_cluster_lengths=(4, 64, 1), thread_cluster_arrange_order=(0, 2, 1),
        ...         src_access_order=(0, 2, 1), src_vector_dim=1, src_scalar_per_vector=1,
        ...         dst_scalar_per_vector_k1=8, lds_extra=True,
        ...     ),
        ...     c_shuffle=tw.ck.CShuffle(
        ...         m_repeat_per_shuffle=1, n_repeat_per_shuffle=1, cluster_lengths=(1, 32, 1, 8),
        ...         scalar_per_vector=8,
        ...     ),
        ... )
        >>> print(instance.type_string.partition(" AEnableLds")[0])
        DeviceGemmWmma_CShuffle<256, 128, 256, 64, 8, 16, 16, 4, 4>
        >>> instance.waves, instance.enable_lds, instance.lds[0], instance.lds_bytes
        ((2, 4), (True, True), Layout((8, 128, 8), (1032, 8, 1)), 49376)
        >>> for check in instance.check((512, 512, 100)).failed:
        ...     print(check.name, check.value, check.nearest, sep=" | ")
        vector load of A | K=100 | K=104, or a_block_transfer.src_scalar_per_vector=4
        whole tiles along K | K=100 | K=128, or gemm_specialization="KPadding"
        >>> import numpy as np
        >>> a = np.ones((3, 5), np.float16)
        >>> tw.matmul(a, a.T, schedule=instance.schedule("reference"), target="reference")[0, 0]
        np.float16(5.0)
    """

    matrix = "wmma"
    wave_size = 32
    repeat_fields = ("m_repeat", "n_repeat")
    k1_fields = ("k1", "k1")
    products: ClassVar[Products] = dict.fromkeys(
        (("f16", "f16", "f32"), ("f16", "f16", "f16"), ("bf16", "bf16", "f32"), ("i8", "i8", "i32")), SIZES
    )

    k1: Count
    m_per_wmma: Count
    n_per_wmma: Count
    m_repeat: Count
    n_repeat: Count
    a_enable_lds: bool | None = None
    b_enable_lds: bool | None = None

    @property
    def type_string(self) -> str:
        """The text that the instance's own program prints."""
        numbers = (
            *(self.block_size, *self.tile, self.k1, self.m_per_wmma, self.n_per_wmma),
            *(self.m_repeat, self.n_repeat),
        )
        a, b = map(int, self.enable_lds)
        return (
            f"DeviceGemmWmma_CShuffle<{', '.join(map(str, numbers))}> AEnableLds: {a}, BEnableLds: {b}, "
            f"NumPrefetch: {self.num_prefetch}, LoopScheduler: {self.loop_scheduler}, "
            f"PipelineVersion: {self.pipeline_version}"
        )

    @property
    def instruction(self) -> tuple[int, int, int]:
        """Extents (m, n, k) of one matrix instruction; two instructions count as one if k1 is 16."""
        return self.m_per_wmma, self.n_per_wmma, 32 if self.k1 == 16 else 16

    @property
    def may_skip_lds(self) -> tuple[bool, bool]:
        """Whether A and B may go straight to registers.

        A may if it is row-major, no two waves need the same rows, and a thread reads 16 bytes at once or has
        one repeat. B may under the same conditions, column-major.  With more than one prefetched step neither
        may.
        """
        (waves_m, waves_n), (a, b) = (
            self.waves,
            (kind.bytes * self.k1 == WIDEST_BYTES for kind in self.dtypes),
        )
        alone = self.num_prefetch == 1
        return (
            alone and waves_n == 1 and (a or self.m_repeat == 1) and self.a_layout == ROW,
            alone and waves_m == 1 and (b or self.n_repeat == 1) and self.b_layout == COLUMN,
        )

    @property
    def enable_lds(self) -> tuple[bool, bool]:
        """Whether A and B go through shared memory: by the fields, else unless they may skip it."""
        a, b = (
            not may_skip if said is None else said
            for may_skip, said in zip(self.may_skip_lds, (self.a_enable_lds, self.b_enable_lds), strict=True)
        )
        return a, b


# ----------------------------------------------------------------
# Traits of Composable Kernel's wrapper, which name the instructions of its block GEMM.


WAVE = 64
"""Lanes of an instruction."""

GEMM_TRAITS = tuple(
    f"{side}x{side}Xdl_{m}x{n}XdlPerWave_{k1}K1"
    for side in (32, 16)
    for k1 in (4, 8, 16)
    for m, n in ((4, 2), (2, 4), (2, 2))
)
"""Every name: rows and columns of an instruction, instructions of a wave along M and N, neighbours along K
that a lane holds."""


@launches
def tiled_mma(traits: str, dtype: DType | str, tile: tuple[int, int]) -> TiledMma:
    """Return the tiled MMA for traits of Composable Kernel's wrapper block GEMM, over the waves of a tile.

    A lane holds ``K1`` neighbours along K, or as many as its deepest instruction takes.

    Args:
        traits: such as ``"32x32Xdl_4x2XdlPerWave_8K1"``: instructions of 32 x 32 or 16 x 16; 4 x 2, 2 x 4 or
            2 x 2 instructions per wave; 4, 8 or 16 neighbours along K per lane.
        dtype: dtype of A and B.
        tile: rows and columns of a block's tile of C.

    Returns:
        The argument of `tw.mma` and `tw.accumulator`, for gfx942.

    Raises:
        LaunchError: the traits are unknown, no instruction has the dtype, or the tile is not of whole waves.

    Example:
        >>> import tilewright as tw
        >>> mma = tw.ck.tiled_mma("32x32Xdl_4x2XdlPerWave_8K1", "f16", (256, 128))
        >>> mma.warps, mma.repeats, mma.threads, mma.atom
        ((2, 2), (4, 2), 256, <atom mfma.32x32x16.f32.f16: 32 x 32 x 16, f16 * f16 + f32, 64 lanes, mfma>)
    """
    if traits not in GEMM_TRAITS:
        known = f"{', '.join(GEMM_TRAITS)}{close_to(traits, GEMM_TRAITS)}"
        raise LaunchError(f"tiled_mma(traits={shown(traits)}): no such traits; choose one of {known}")
    side, _, m, n, k1 = map(int, re.findall(r"\d+", traits)[:5])
    wanted, arch = dtype_named(dtype), HIP.architecture(HIP.arch)
    atoms = [atom for atom in MATRIX_CORES.values() if atom.instruction == MFMA and atom.a_dtype == wanted]
    listed = [atom for atom in atoms if atom.feature in arch.features]
    most = k1 * WAVE // side
    fitting = [atom for atom in listed if atom.shape[0] == side and atom.shape[2] <= most]
    if not fitting:
        sizes = sorted({atom.shape[0] for atom in listed})
        near_traits = f"traits of {sizes[0]} x {sizes[0]}" if sizes else "f16, bf16, f32 or i8"
        raise LaunchError(
            f"tiled_mma({traits!r}): {arch.name} has no instruction of {side} x {side} that multiplies "
            f"{wanted} with {k1} neighbours of a lane",
            near_traits,
        )
    atom = max(fitting, key=lambda atom: atom.shape[2])
    units = side * m, side * n
    if any(extent % unit or extent < unit for extent, unit in zip(tile, units, strict=True)):
        near = tuple(max(round(extent / unit), 1) * unit for extent, unit in zip(tile, units, strict=True))
        text = f"tiled_mma({traits!r}): a tile of {tile} is not made of waves of {units[0]} x {units[1]}"
        raise LaunchError(text, f"tile={near}")
    return TiledMma(atom, (tile[0] // units[0], tile[1] // units[1]), (m, n))
