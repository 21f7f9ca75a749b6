"""Device GEMMs whose waves of 32 threads multiply by WMMA."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from tilewright.calls import launches
from tilewright.instances.device import DeviceGemm
from tilewright.instances.template import Products
from tilewright.instances.words import COLUMN, ROW
from tilewright.kinds import Count

WIDEST_BYTES = 16
"""Of one access of a thread."""

SIZES = ((16, 16),)


@launches
@dataclass(frozen=True, kw_only=True, repr=False)
class DeviceGemmWmma(DeviceGemm):
    """``C = c_op(a_op(A) @ b_op(B))`` by WMMA: an instance of ``DeviceGemmWmma_CShuffle``.

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
        k1: neighbours along K that stay together in shared memory.
        m_per_wmma: rows of an instruction.
        n_per_wmma: columns of an instruction.
        m_repeat: instructions of a wave along M.
        n_repeat: instructions of a wave along N.
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
        a_enable_lds: whether A goes through shared memory; None: as the rule says, see `enable_lds`.
        b_enable_lds: the same of B.

    Raises:
        LaunchError: a field of another kind, such as an order that is none.
        DTypeError: an unknown dtype.

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
        """What the program that the instance is taken from prints of it."""
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
        """Extents (m, n, k) of one matrix instruction; with 16 neighbours along K two are taken as one."""
        return self.m_per_wmma, self.n_per_wmma, 32 if self.k1 == 16 else 16

    @property
    def repeats(self) -> tuple[int, int]:
        """Instructions of each wave along M and N for one step along K."""
        return self.m_repeat, self.n_repeat

    @property
    def k1s(self) -> tuple[int, int]:
        """Neighbours along K that stay together in shared memory, of A and of B."""
        return self.k1, self.k1

    @property
    def may_skip_lds(self) -> tuple[bool, bool]:
        """Whether A and B may go straight to registers.

        A may where no two waves need the same rows, so that nothing is read twice, where it is row-major, and
        where a thread reads 16 bytes at once or has one repeat alone; B likewise, column-major.  With more
        than one step on its way neither may.
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
        """Whether A and B go through shared memory: as the fields say, else unless they may skip it."""
        a, b = (
            not may_skip if said is None else said
            for may_skip, said in zip(self.may_skip_lds, (self.a_enable_lds, self.b_enable_lds), strict=True)
        )
        return a, b
