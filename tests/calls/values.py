"""The values that the fuzzer passes for an argument, as text."""

from __future__ import annotations

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
