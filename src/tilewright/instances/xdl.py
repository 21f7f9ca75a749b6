"""Device GEMMs whose waves of 64 threads multiply by the matrix instructions that are called XDL."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from tilewright.calls import launches
from tilewright.instances.device import DeviceGemm
from tilewright.instances.template import Products
from tilewright.kinds import Count

DEPTHS: dict[str, dict[int, int]] = {
    "f16": {32: 8, 16: 16},
    "bf16": {32: 8, 16: 16},
    "f32": {32: 2, 16: 4},
    "f64": {16: 4},
    "i8": {32: 8, 16: 16},
    "f8e4m3": {32: 16, 16: 32},
    "f8e5m2": {32: 16, 16: 32},
}
"""How deep an instruction is, by the dtype of its operands and its extent along M and N."""

SUMS = {"i8": "i32", "f64": "f64"}
"""In what products are added, where that is not f32."""


@launches
@dataclass(frozen=True, kw_only=True, repr=False)
class DeviceGemmXdl(DeviceGemm):
    """``C = c_op(a_op(A) @ b_op(B))`` by XDL: an instance of ``DeviceGemm_Xdl_CShuffle``.

    Every parameter of the template is a field of the same name in small letters: ``MPerBlock`` is
    ``m_per_block``.  Those of the transfers of A, of B and of the result are together in a value each.

    Args:
        a_dtype: element type of A (M, K); all by name, or as `tw.f16`.
        b_dtype: element type of B (K, N).
        acc_dtype: in which products are added.
        c_shuffle_dtype: in which the result goes through shared memory.
        c_dtype: element type of C (M, N).
        block_size: threads of a block.
        m_per_block: rows of C that a block computes.
        n_per_block: columns of C that it computes.
        k_per_block: how deep its steps along K are.
        ak1: neighbours along K that stay together in shared memory, of A.
        bk1: the same of B.
        m_per_xdl: rows of an instruction.
        n_per_xdl: columns of an instruction.
        m_xdl_per_wave: instructions of a wave along M.
        n_xdl_per_wave: instructions of a wave along N.
        a_block_transfer: how tiles of A are copied.
        b_block_transfer: how tiles of B are copied.
        c_shuffle: how the result is taken out.
        a_layout: ``"row"`` or ``"column"``: of which A's memory is made.
        b_layout: the same of B.
        c_layout: the same of C.
        a_element_op: what is done to elements of A as they are copied, by name.
        b_element_op: to those of B.
        c_element_op: to those of the result.
        gemm_specialization: which of M, N and K are padded: ``"Default"`` none, ``"MNKPadding"`` all.
        num_prefetch: steps that are on their way into registers while one is multiplied.
        loop_scheduler: ``"Default"`` or ``"Interwave"``.
        pipeline_version: ``"v1"`` or ``"v2"``.

    Raises:
        LaunchError: a field of another kind, such as an order that is none.
        DTypeError: an unknown dtype.

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
        """What the program that the instance is taken from prints of it."""
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
        """Extents (m, n, k) of one matrix instruction; depth 0 where there is none."""
        depth = DEPTHS.get(self.dtypes[0].name, {}).get(self.m_per_xdl, 0)
        return self.m_per_xdl, self.n_per_xdl, depth

    @property
    def repeats(self) -> tuple[int, int]:
        """Instructions of each wave along M and N for one step along K."""
        return self.m_xdl_per_wave, self.n_xdl_per_wave

    @property
    def k1s(self) -> tuple[int, int]:
        """Neighbours along K that stay together in shared memory, of A and of B."""
        return self.ak1, self.bk1

    @property
    def may_skip_lds(self) -> tuple[bool, bool]:
        """Whether A and B may go past shared memory: they may not."""
        return False, False

    @property
    def enable_lds(self) -> tuple[bool, bool]:
        """Whether A and B go through shared memory: they always do."""
        return True, True
