"""Legal calls of everything public, as text, in which the fuzzer puts wrong values."""

from __future__ import annotations

OUTSIDE = """
tw.DType("f12", 12, "float", 1, 4)
tw.dtype("float16")
tw.dtype(np.float32)
tw.Mode(4, 0, 1)
tw.Distribution((4, 8), (tw.Mode(4, 0, 1),), (tw.Mode(8, 1, 1),))
rows.slice((0, 4), (4, 2))
rows.projected((4, 1))
rows.coordinate(2, 5)
rows.vector()
tw.Layout((4, (2, 3)), (1, (4, 8)))
tw.Layout((4, 8))(1, 2)
tw.Layout((4, (2, 3))).slice(None, (1, None))
tw.Layout((4, 8))[2, :]
tw.Layout((4, 8)) == tw.Layout(4)
tw.layouts.make_layout(tw.Layout(4, 2), tw.Layout((2, 3)))
tw.layouts.coalesce(tw.Layout((2, (1, 6)), (1, (6, 2))), (None, None))
tw.layouts.composition(tw.Layout((6, 2), (8, 2)), tw.Layout((4, 3), (3, 1)))
tw.layouts.complement(tw.Layout(4, 2), 24)
tw.layouts.logical_divide(tw.Layout((8, 6)), (4, 2))
tw.layouts.zipped_divide(tw.Layout((8, 6)), (4, 2))
tw.layouts.tiled_divide(tw.Layout((8, 6)), (4, 2))
tw.layouts.logical_product(tw.Layout((2, 2), (4, 1)), tw.Layout(6))
tw.layouts.blocked_product(tw.Layout((2, 5), (5, 1)), tw.Layout((3, 4)))
tw.layouts.raked_product(tw.Layout((2, 5), (5, 1)), tw.Layout((3, 4)))
tw.layouts.left_inverse(tw.Layout((4, 8), (16, 2)))
tw.layouts.right_inverse(tw.Layout((4, 8), (8, 1)))
tw.column_major((4, 8), 6)
tw.row_major((4, 8), 12)
tw.View((4, 8), 0, 32)
tw.View.strided((4, 8), (8, 1))
tw.View.of(tw.Layout((4, 8)))
view.at((2, 3))
view.coords[0] + 3
5 - view.coords[1] * 2
view.coords[0] // 2 % 3 ^ 1
view.valid_at((2, 3))
view.vector_width(1, 16)
view.vector_obstacle(1, 4)
view.map((4, 8), view.coords)
tw.Swizzle(3, 3, 3).apply(tw.View.strided((8, 64), (64, 1)))
tw.Swizzle(3, 3, 3).offset(64)
transforms.Tile((2, None), (1, None)).apply(view)
transforms.Slice((-1, (4, None))).apply(view)
tw.layouts.Pad((1, 0), (1, 0)).apply(view)
tw.layouts.PadTo((8, 8)).apply(view)
tw.layouts.Unmerge(1, (4, 2)).apply(view)
tw.layouts.Merge(0, 2).apply(view)
tw.layouts.Embed(0, (3, 2), (1, 1), 1).apply(view)
tw.layouts.Permute((1, 0)).apply(view)
tw.layouts.Broadcast(1, 8).apply(view)
tw.im2col(image, spatial=(1, 2), filter=(3, 3), stride=1, padding=1, batch=0, channel=-1, groups=2)
tw.blocked((256, 32), (64, 4), (1, 0), 1, (0, 1), 4)
tw.raked((128, 32), (32, 4), 8, 1)
tw.by_warps((128, 32), tw.atoms.MMA_F16.a, (2, 2), reuse="row", along=0, repeats=(4, 2))
tw.by_warps((128, 64), tw.atoms.MMA_F16.c, tw.Layout((2, 2)))
tw.base_tile((64, 64), "f16", contiguous=1, lanes=32)
tw.MmaAtom("one", "f16", "f16", "f32", tw.atoms.MMA_F16.a, tw.atoms.MMA_F16.b, tw.atoms.MMA_F16.c, "", "")
tw.TiledMma(tw.atoms.MMA_F16, warps=(4, 2), repeats=(4, 8))
tw.TiledMma(tw.atoms.MMA_F16, warps=4, tile=(128, 64))
mma.a(16)
mma.b(16)
mma.c()
tw.operand_a(mma, 16)
tw.operand_b(mma, 32)
tw.atoms.fma("f32", "f32", (4, 8), (2, 2), True)
tw.atoms.wgmma("f8e4m3", 64, "f8e5m2", "f32")
tw.ceil_div((130, 64), (128, 64))
tw.device_count()
tw.maximum(3, 4)
tw.minimum(3, 4)
tw.unroll(4)
tw.TensorSpec("f16", 2, 1, (256, 32), (16, 1), 16, False)
tw.Specimen(tw.f16, (4, 8), (8, 1), 16)
tw.like("f16", 8, 16, strides=(20, 1), align=4)
tw.like("f32", (8, 16), order="F")
tw.pack([[1, -2], [3, 4]], tw.i4)
tw.Packed(tw.pack([[1, 2]], tw.i4), tw.i4)
tw.unpack(tw.pack([0.5, 6.0], tw.f4e2m1), "f4e2m1")
tw.packed(tw.pack([[1, -2], [3, 4]], tw.i4), "i4")
tw.ir.print_kernel(traced, locations=True)
tw.ir.parse_kernel(text)
tw.kernel(function)
tw.kernel(X="M N", alpha=tw.f32)(function)
tw.matmul(a, b, out, precision="exact", target="reference", schedule=None, stream=None)
tw.matmul(a, b, target="reference")
tw.grouped_matmul(a, stack, ends, out, bias=None, activation="relu", target="reference", schedule=None)
tw.Schedule(tw.atoms.MMA_F16, (64, 64, 32), (2, 2), 3, staging="cp_async")
tw.testing.operands("integers", tw.f16, (4, 5, 6), seed=1, layout="nt")
tw.testing.compare_gemm(w, w, w @ w)
tw.testing.softmax_attention(w, w, w, 0.5, shift=1)
tw.testing.device_get(tw.testing.device_put(w, "reference"))
scale.bind(tile=32)
scale(w, 2.0, tile=32, target="reference")
scale.check(w, 2.0, tile=32, lanes=32)
scale.trace(w, 2.0, tile=32)
scale.compile(tw.like("f32", 32, 32), 2.0, tile=32, target="reference", arch=None)
bound(w, 2.0, target="reference")
bound.prepare(w, 2.0, target="reference")(alpha=3.0)
bound.check(w, 2.0, target="cuda", arch="sm_90a")
prepared(alpha=3.0, stream=None)
tw.Schedule(tw.atoms.MMA_F16, (128, 128, 32), warps=(2, 2), stages=3, staging="cp_async")
tw.Schedule(wgmma, (128, 256, 64), stages=4, staging="tma", roles="cooperative", groups=2, cluster=(2, 1))
tw.Schedule(wgmma, (128, 256, 64), stages=4, staging="tma", roles="ping-pong", epilogue="overlapped")
tw.Schedule(wgmma, (128, 256, 64), blocks=132, group_m=8, group_n=0, promote=0, buffers=2, registers=232)
schedule.mma
linear.flow(w, w, w, 2.0)
linear.bind(schedule=schedule).check(w, w, out, 2.0, target="cpu")
linear(w, w, out, 2.0, target="reference")
linear(w, w, out, 2.0, schedule=schedule, target="reference")
tw.ir.print_flow(flow, locations=True)
tw.ir.parse_flow(flowing)
tw.ir.evaluate(flow, {"A": w, "B": w}, {"alpha": 2.0}, rounded=True, run=3)
tw.ck.BlockTransfer(**transfer, thread_cluster_lengths=(4, 64, 1), src_vector_dim=2, lds_extra=True)
tw.ck.CShuffle(**repeats, cluster_lengths=(1, 32, 1, 8), scalar_per_vector=8)
tw.ck.DeviceGemmWmma(**wmma, k1=8)
tw.ck.DeviceGemmXdl(**xdl, ak1=8)
tw.ck.GemmProblem(tw.ck.Matrix((8, 4), (4, 1)), tw.ck.Matrix((4, 8), (8, 1)), tw.ck.Matrix((8, 8), (8, 1)))
device.check(tw.ck.GemmProblem.of(w, w, w), arch="gfx1151")
device.check((512, 512, 512))["BlockSize"]
device.schedule("sm_80")
device.notes("cpu")
tw.draw.draw_layout(tw.Layout((4, 8)), title="T")
tw.draw.offset_table(tw.Layout((4, 8)))
tw.draw.draw_distribution(rows, title="T", lanes=32)
tw.draw.bank_requests(tw.Layout((32, 4), (32, 1)), columns, 4, 4, lanes=32)
tw.draw.draw_banks(tw.Layout((32, 4), (32, 1)), columns, 4, 4, reader="r", lanes=32)
tw.draw.draw_layout(tw.Layout((4, 8)))._repr_svg_()
tw.copy(a, b)
tw.barrier()
tw.load(a)
""".strip().splitlines()
"""Calls outside of kernels; the last ones are refused there."""

INSIDE = """
tw.block_index((4, 2))
tw.batch_index(2)
tw.hopper.cluster_index((2, 1))
tw.hopper.cluster_index((2, 1)); tw.hopper.cluster_barrier()
tw.hopper.cluster_index((2, 1)); tw.hopper.peer(S, (1, 0))
tw.hopper.cluster_index((2, 1)); tw.hopper.cluster_arrive(); tw.hopper.cluster_wait()
tw.workspace((n, 4), "f32", zeroed=True)
tw.derived(n * 2)
tw.require(n > 2, "n is small")
tw.let(n + 1)
tw.index(I[0], 0, n + 1, multiple=2)
v = tw.var(0)
v0.set(v0.get() + 1)
for k in tw.range(0, n, 2, unroll=False, provenance="loop"): tw.barrier()
for k in tw.unroll(3): tw.barrier()
with tw.when(n > 2): tw.barrier()
with tw.when(m < 2): tw.barrier()\\nwith tw.otherwise(): tw.barrier()
with tw.role(warps=4, registers=40): tw.hopper.fence_async()
with tw.role(4): tw.role_barrier(1, 128)
tw.shared((32, 32), "f32", layout=tw.Layout((32, 32), (33, 1)), elems=2048, name="s")
tw.shared((32, 64), "f16", swizzle=128)
tw.shared((32, 64), "f16", swizzle=tw.Swizzle(3, 3, 3))
tw.fragment(f, "f32", 0.0, name="g")
tw.fragment(tw.blocked((32, 32), (8, 4)), "f32", 1)
tw.accumulator(mma, 0)
tw.copy(X.tile((32, 32), (m, 0)), S, threads=(8, 4), vector=1, vector_dim=1, access_order=(0, 1))
tw.copy(X.tile((32, 32), (m, 0)), S, threads=tw.raked((32, 32), (8, 4), 4, 1))
tw.copy(f, X.tile((32, 32), (m, 0)))
tw.copy(S, f, engine="direct")
tw.copy(f, X.tile((32, 32), (m, 0)), reduction="add")
tw.signal(tw.counter((2, n))[0, m], 2)
tw.signal(tw.counter(4)[0], of=n)
tw.ticket(tw.counter(4)[0], of=4, barrier=None)
tw.await_(tw.counter(4)[0], m)
tw.reset(tw.counter(4)[0])
tw.copy_async(X.tile((32, 32), (m, 0)), S, threads=(8, 4), vector=4)
tw.async_commit()
tw.async_wait(1)
tw.barrier()
tw.warp_barrier()
tw.load(X.tile((32, 32), (0, 0)).partition((8, 4)), vector=1)
tw.load(S, f)
tw.fill(f, 1.0)
tw.mma(A, B, acc)
tw.mma(A, B, acc, mma)
tw.hopper.mma_async(A, B, acc, mma)
tw.hopper.mma_commit()
tw.hopper.mma_wait(0)
tw.hopper.mma_fence()
tw.hopper.fence_async()
tw.hopper.mbarrier(2, 1)
tw.hopper.wait(full[0], 0)
tw.hopper.arrive(full[0], expect_bytes=64, each="role")
tw.hopper.tma_load(X.tile(T.shape, (0, 0)), T, full[0], multicast=())
tw.hopper.tma_store(T, X.tile(T.shape, (0, 0)))
tw.hopper.tma_store(T, X.tile(T.shape, (0, 0)), reduction="add")
tw.hopper.bulk_commit()
tw.hopper.bulk_wait(0)
tw.hopper.prior_grid_wait()
tw.hopper.launch_dependents()
tw.exp(f)
tw.exp2(f)
tw.log(f)
tw.sqrt(f)
tw.rsqrt(f)
tw.tanh(f)
tw.erf(f)
tw.log2(f)
tw.sin(f)
tw.cos(f)
tw.floor(f)
tw.round(f)
tw.clamp(f, -1, 1)
tw.bitcast(f, tw.i32)
tw.argmax(f, 1)
tw.prefix_sum(f, 1, scratch=tw.shared(f.shape, tw.f32))
tw.sigmoid(f)
tw.silu(f)
tw.relu(f)
tw.gelu(f)
tw.gelu(f, approximate=True)
tw.absolute(f)
tw.maximum(f, 0.0)
tw.minimum(f, alpha)
tw.maximum(n, 4)
tw.ceil_div(n, 32)
tw.fma(f, f, f)
tw.where(f < 1.0, f, 0.0)
tw.reduce_sum(f, 1, block=8)
tw.reduce_max(f, dim=0, per_thread=True)
tw.reduce_min(f, -1, scratch=None, barrier=None)
tw.redistribute(f, f, scratch=S)
tw.coordinates(f, 0)
tw.causal_mask(f, 0, n)
tw.operand_a(mma, 16)
tw.operand_b(mma, 16)
X.tile((32, 32), (m, 0))
X.tile((32, None, 32), (m, 0, 0), projection=(1, None, 1))
X.tiles((32, 32))[0, :][1]
X[0:32, n]
X.rows(I, 0, padded=True)
X[I, 0:32]
X.permute(1, 0)
X.pad((1, 1), (0, 0))
X.pad_to((64, 64))
S.unmerge(1, (4, 8))
S.merge(0, 2)
S.embed(0, (3, 30), (1, 1), 0)
S.unmerge(0, (4, 8)).im2col(spatial=(1,), filter=(3,), batch=0, channel=-1)
S.broadcast(0, 4)
S.swizzle(3, 3, 3)
S.partition((8, 4), projection=None, vector_dim=1, access_order=(0, 1), vector=2)
f.to("f16", saturate=True)
f.assign(f)
f[0:32, :]
f + 1.0
f * alpha - n
f // 2.0
(f < 1.0) & (f > 0.0)
f ** 2
n + 1
n // 2
n % 4
1 - n
n << 2
n >= 4
(n > 2) | (n < 1)
""".strip().splitlines()
"""Calls inside of a kernel."""

VALUES = """
None
True
0
1
-1
2
3
7
8
32
33
128
1024
1048576
2147483648
1099511627776
9223372036854775808
1000000000000000000
100000000000000000000000000000000000
-2147483648
0.5
1.0
-0.0
float("nan")
float("inf")
""
"f16"
"f61"
"cuda"
"row"
long
b"f16"
()
(1,)
(4, 8)
(8, 4)
(0, 1)
(1, 0)
(1, 1, 1)
(0, 0)
(-1, 4)
(1048576, 1048576)
(1099511627776, 1)
(4, "8")
(4, 0.5)
(4, None)
(None, None)
((4, 8), 2)
[4, 8]
given
range(3)
range(1000000000)
table
{4, 8}
nested
object()
strange
print
lambda: 3
np.float32
np.float32(2)
np.int64(4)
np.bool_(True)
np.array(3)
np.array([4, 8])
np.array(["4", "8"])
np.zeros((4, 4), np.float32)
int
tw
tw.f16
tw.c64
tw.Layout
tw.Layout((4, 8))
tw.Layout(1, 0)
tw.Layout((8, 4), (4, 1))
tw.Layout((1048576, 1048576))
tw.Layout(4, -1)
symbolic
view
image
rows
columns
tw.Mode(4, 0, 1)
tw.Mode(-1, 9, 0)
tw.Swizzle(3, 3, 3)
tw.atoms
tw.atoms.MMA_F16
tw.atoms.MMA_F16.a
mma
schedule
a
b
text
traced
scale
bound
linear
flow
flowing
tw.TensorSpec("f16", 2, 1, (256, 32), (16, 1), 16, False)
tw.like("f32", 8, 8)
liar
(i for i in (4, 8))
""".strip().splitlines()
"""What replaces an argument; names stand for what `tests/calls/performed.py` makes."""

TRACED = """
X
S
T
I
I[0]
f
A
acc
alpha
n
m
n > 2
full
full[0]
X.tiles((32, 32))
v0
X.shape
S.value
(n, 4)
n * 1099511627776
h
""".strip().splitlines()
"""The same inside of a kernel."""
