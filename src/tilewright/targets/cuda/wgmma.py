"""Prelude pieces of asynchronous kernels: mbarrier, TMA, wgmma, registers of a warpgroup."""

from __future__ import annotations

from tilewright.ir.async_legality import BULK_REDUCTIONS

CLUSTER_SCOPE = "_cluster"
"""Suffix of functions that also order the threads' own accesses between blocks, which costs a wait."""

_SHARED = "(unsigned)__cvta_generic_to_shared"


_BARRIERS = {
    "mbarrier_t": "typedef unsigned long long mbarrier_t;",
    "mbarrier_init": f"""
DEVICE void mbarrier_init(mbarrier_t* barrier, int stages, int arrivals) {{
  for (int i = 0; i < stages; ++i) {{
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"({_SHARED}(barrier + i)), "r"(arrivals));
  }}
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}}""",
    "mbarrier_arrive": f"""
DEVICE void mbarrier_arrive(mbarrier_t* barrier) {{
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"({_SHARED}(barrier)) : "memory");
}}""",
    "mbarrier_arrive_expect": f"""
DEVICE void mbarrier_arrive_expect(mbarrier_t* barrier, int bytes) {{
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;"
               ::"r"({_SHARED}(barrier)), "r"(bytes) : "memory");
}}""",
    **{
        f"mbarrier_arrive_at{suffix}": f"""
DEVICE void mbarrier_arrive_at{suffix}(mbarrier_t* barrier, int block) {{
  asm volatile("{{\\n"
               ".reg .b32 there;\\n"
               "mapa.shared::cluster.u32 there, %0, %1;\\n"
               "mbarrier.arrive{order}.shared::cluster.b64 _, [there];\\n"
               "}}" ::"r"({_SHARED}(barrier)), "r"(block) : "memory");
}}"""
        for suffix, order in (("", ""), (CLUSTER_SCOPE, ".release.cluster"))
    },
    **{
        f"mbarrier_wait{suffix}": f"""
DEVICE void mbarrier_wait{suffix}(mbarrier_t* barrier, int parity) {{
  asm volatile("{{\\n"
               ".reg .pred done;\\n"
               "again:\\n"
               "mbarrier.try_wait.parity{order}.shared::cta.b64 done, [%0], %1;\\n"
               "@done bra over;\\n"
               "bra again;\\n"
               "over:\\n"
               "}}" ::"r"({_SHARED}(barrier)), "r"(parity) : "memory");
}}"""
        for suffix, order in (("", ""), (CLUSTER_SCOPE, ".acquire.cluster"))
    },
}


def _tma_loads(rank: int, sent: str, taken: str, given: str) -> dict[str, str]:
    """Loads of a box to one block or several; some take the number of blocks that read the box.

    A box that is read once is evicted first from the second-level cache.  Other boxes have no hint: the hint
    of normal eviction makes a GEMM slower by a tenth or more (measured on an H200).
    """
    blocks, passed = ("unsigned short blocks, ", "blocks, ") if sent else ("", "")
    coordinates, numbers = (", ".join(f"{kind}x{i}" for i in range(rank)) for kind in ("int ", ""))
    inputs = ", ".join([*([given] if sent else []), *(f'"r"(x{i})' for i in range(rank))])
    before = 3 + bool(sent)
    places, last = ", ".join(f"%{before + i}" for i in range(rank)), before + rank
    copy = f"cp.async.bulk.tensor.{rank}d.shared::cluster.global.mbarrier::complete_tx::bytes{sent}"
    ends = f'::"r"({_SHARED}(to)), "l"(map), "r"({_SHARED}(barrier)), {inputs}'
    name = f"tma_load{taken}"
    signature = "const tensor_map_t* map, void* to, mbarrier_t* barrier,"
    mask = ", %3" if sent else ""
    return {
        f"{name}_{rank}d": f"""
DEVICE void {name}_{rank}d({signature} {blocks}{coordinates}) {{
  asm volatile("{copy} "
               "[%0], [%1, {{{places}}}], [%2]{mask};"
               {ends} : "memory");
}}""",
        f"{name}_once_{rank}d": f"""
DEVICE void {name}_once_{rank}d({signature} {blocks}{coordinates}) {{
  unsigned long long first;
  asm("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(first));
  asm volatile("{copy}.L2::cache_hint "
               "[%0], [%1, {{{places}}}], [%2]{mask}, %{last};"
               {ends}, "l"(first) : "memory");
}}""",
        f"{name}_read_by_{rank}d": f"""
DEVICE void {name}_read_by_{rank}d({signature} {blocks}int readers, {coordinates}) {{
  if (readers == 1) {name}_once_{rank}d(map, to, barrier, {passed}{numbers});
  else {name}_{rank}d(map, to, barrier, {passed}{numbers});
}}""",
    }


def _tma(rank: int) -> dict[str, str]:
    coordinates = ", ".join(f"int x{i}" for i in range(rank))
    inputs = ", ".join(f'"r"(x{i})' for i in range(rank))
    store = ", ".join(f"%{i + 2}" for i in range(rank))
    return {
        **_tma_loads(rank, "", "", ""),
        **_tma_loads(rank, ".multicast::cluster", "_multicast", '"h"(blocks)'),
        f"tma_store_{rank}d": f"""
DEVICE void tma_store_{rank}d(const tensor_map_t* map, const void* from, {coordinates}) {{
  asm volatile("cp.async.bulk.tensor.{rank}d.global.shared::cta.bulk_group [%0, {{{store}}}], [%1];"
               ::"l"(map), "r"({_SHARED}(from)), {inputs} : "memory");
}}""",
        **{
            f"tma_{kind}_{rank}d": f"""
DEVICE void tma_{kind}_{rank}d(const tensor_map_t* map, const void* from, {coordinates}) {{
  asm volatile("cp.reduce.async.bulk.tensor.{rank}d.global.shared::cta.{kind}.bulk_group "
               "[%0, {{{store}}}], [%1];"
               ::"l"(map), "r"({_SHARED}(from)), {inputs} : "memory");
}}"""
            for kind in BULK_REDUCTIONS
        },
    }


_COPIES = {
    "tensor_map_t": "struct __align__(64) tensor_map_t { unsigned long long opaque[16]; };",
    **{name: text for rank in (1, 2, 3, 4, 5) for name, text in _tma(rank).items()},
    "acquire_map": """
DEVICE void acquire_map(const tensor_map_t* map) {
  asm volatile("fence.proxy.tensormap::generic.acquire.sys [%0], 128;" ::"l"(map) : "memory");
}""",
    "bulk_commit": """
DEVICE void bulk_commit() {
  asm volatile("cp.async.bulk.commit_group;" ::: "memory");
}""",
    "bulk_wait": """
template <int pending>
DEVICE void bulk_wait() {
  asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(pending) : "memory");
}""",
    "fence_async": """
DEVICE void fence_async() {
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}""",
    "fence_async_global": """
DEVICE void fence_async_global() {
  asm volatile("fence.proxy.async.global;" ::: "memory");
}""",
}

_MMA = {
    "descriptor_t": "typedef unsigned long long descriptor_t;",
    "descriptor": f"""
DEVICE descriptor_t descriptor(const void* tile) {{
  // Rows of 128 bytes under the 128-byte swizzle; 8 rows are 1024 bytes.
  const descriptor_t start = ({_SHARED}(tile) & 0x3ffff) >> 4;
  return start | 1ull << 16 | (1024ull >> 4) << 32 | 1ull << 62;
}}""",
    "descriptor_of_panels": f"""
DEVICE descriptor_t descriptor_of_panels(const void* tile, int panel_bytes) {{
  // Rows of 128 bytes along M or N, one for each k; the next 64 elements lie in another panel.
  const descriptor_t start = ({_SHARED}(tile) & 0x3ffff) >> 4;
  return start | (descriptor_t)(panel_bytes >> 4) << 16 | (1024ull >> 4) << 32 | 1ull << 62;
}}""",
    "uniform": """
DEVICE int uniform(int x) {
  return __shfl_sync(0xffffffff, x, 0);
}""",
    "mma_fence": """
DEVICE void mma_fence() {
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}""",
    "mma_commit": """
DEVICE void mma_commit() {
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}""",
    "mma_wait": """
template <int pending>
DEVICE void mma_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(pending) : "memory");
}""",
}


_CONTROL = {
    **{
        f"set_registers_{way}": f"""
template <int count>
DEVICE void set_registers_{way}() {{
  asm volatile("setmaxnreg.{how}.sync.aligned.u32 %0;" ::"n"(count));
}}"""
        for way, how in (("up", "inc"), ("down", "dec"))
    },
    "role_barrier": """
template <int number, int threads>
DEVICE void role_barrier() {
  asm volatile("bar.sync %0, %1;" ::"n"(number), "n"(threads) : "memory");
}""",
    "role_barrier_of_group": """
template <int threads>
DEVICE void role_barrier_of_group(int number) {
  asm volatile("bar.sync %0, %1;" ::"r"(number), "n"(threads) : "memory");
}""",
    "cluster_barrier": """
DEVICE void cluster_barrier() {
  asm volatile("barrier.cluster.arrive.release.aligned;\\n"
               "barrier.cluster.wait.acquire.aligned;" ::: "memory");
}""",
    "cluster_part": """
DEVICE void cluster_part() {
  // After the fence a thread's reads of other blocks' memory are complete; no block reads its writes.
  asm volatile("fence.acq_rel.cta;\\n"
               "barrier.cluster.arrive.relaxed.aligned;\\n"
               "barrier.cluster.wait.aligned;" ::: "memory");
}""",
    "cluster_arrive": """
DEVICE void cluster_arrive() {
  asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
}""",
    "cluster_wait": """
DEVICE void cluster_wait() {
  asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
}""",
    "prior_grid_wait": """
DEVICE void prior_grid_wait() {
  asm volatile("griddepcontrol.wait;" ::: "memory");
}""",
    "launch_dependents": """
DEVICE void launch_dependents() {
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
}""",
}

PIECES: dict[str, str] = {**_BARRIERS, **_COPIES, **_MMA, **_CONTROL}
"""Every piece by the name that it defines."""
