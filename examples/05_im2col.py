"""im2col: the matrix of a convolution's input is a view of the image, which is copied tile by tile.

    python examples/05_im2col.py [--small] [--target cuda|cpu|reference]

An image of 32 x 9 x 9 x 7 positions with 4 groups of 64 channels in f32 (NDHWGC) and a filter of 3 x 3 x 3
give 4 matrices of 7840 rows and 1728 columns.  128 threads write tiles of 32 x 64, 4 elements at once.  Every
element is compared with NumPy's windows.  The program then tries strides, dilations and padding on an image
that no tile divides, and the reverse: `tw.col2im` adds the matrix into an image, in which windows overlap.
"""

from __future__ import annotations

import numpy as np

import tilewright as tw
from tilewright.testing import device_get, device_put, do_bench

SPATIAL = (1, 2, 3)  # of an image (N, D, H, W, G, C)


@tw.kernel(X="N D H W G C", Y="G P T")
def im2col(X, Y, *, taps, tile, threads=None, vector=None, stride=1, dilation=1, padding=0):
    """Y (groups, positions, taps x channels) has a row for each position of the filter in each image."""
    rows, columns = tile
    matrix = X.im2col(SPATIAL, taps, stride=stride, dilation=dilation, padding=padding, group=4)
    _, positions, width = matrix.shape
    tw.require(Y.shape[1] == positions, "Y's second extent must be N times the positions of the filter")
    tw.require(Y.shape[2] == width, "Y's third extent must be the taps times the channels of a group")
    # Neighbouring blocks write neighbouring columns.
    j, i = tw.block_index((tw.ceil_div(Y.shape[2], columns), tw.ceil_div(Y.shape[1], rows)))
    group = tw.batch_index(Y.shape[0])
    tw.copy(matrix[group].tile(tile, (i, j)), Y[group].tile(tile, (i, j)), threads=threads, vector=vector)


LARGE = im2col.bind(taps=(3, 3, 3), tile=(32, 64))
SHAPE, SMALL = (32, 9, 9, 7, 4, 64), (2, 5, 4, 6, 2, 8)
SHAPES = {"cuda": SHAPE, "cpu": SHAPE, "reference": SMALL}

RAGGED = im2col.bind(
    taps=(3, 2, 3),
    tile=(32, 64),
    stride=(2, 1, 2),
    dilation=(1, 2, 1),
    padding=((1, 0), 1, (2, 1)),
)
RAGGED_SHAPE = (3, 6, 7, 5, 3, 5)


def windows(image, taps, stride=1, dilation=1, padding=0):
    """Compute the kernel's result with NumPy."""
    steps, gaps, pads = ([v] * 3 if isinstance(v, int) else v for v in (stride, dilation, padding))
    pads = [(0, 0), *((pad, pad) if isinstance(pad, int) else pad for pad in pads), (0, 0), (0, 0)]
    reach = [gap * (tap - 1) + 1 for tap, gap in zip(taps, gaps, strict=True)]
    found = np.lib.stride_tricks.sliding_window_view(np.pad(image, pads), reach, axis=SPATIAL)
    found = found[
        :, *(slice(None, None, step) for step in steps), :, :, *(slice(None, None, g) for g in gaps)
    ]
    return found.transpose(4, 0, 1, 2, 3, 6, 7, 8, 5)  # (G, N, D, H, W, taps, C)


def matrix_of(turned):
    """Return the windows as a matrix for each group, copied."""
    groups, *places = turned.shape
    return turned.reshape(groups, int(np.prod(places[:4])), int(np.prod(places[4:])))


def attempt(bound, shape, target):
    """Run the kernel, compare every element, and print the time of a call."""
    geometry = {name: bound.constants[name] for name in ("taps", "stride", "dilation", "padding")}
    image = np.random.default_rng(0).standard_normal(shape, np.float32)
    expected = matrix_of(windows(image, **geometry))
    blank = np.full(expected.shape, np.nan, np.float32)  # an element that the kernel does not write stays NaN
    x, y = device_put(image, target), device_put(blank, target)
    executable = bound(x, y, target=target)
    assert executable.target == target, f"{executable.target} ran instead of {target}"
    np.testing.assert_array_equal(device_get(y), expected)
    name = f"im2col<{target}, f32, {'x'.join(map(str, shape))}>"
    print(f"{name} on {executable.arch}: all {expected.size} elements of {expected.shape} are right")
    if target != "reference":  # the reference checks thread by thread; its time means nothing
        ms = do_bench(lambda: bound(x, y, target=target), target)
        print(f"Perf: {ms:.4g} ms, {(image.nbytes + expected.nbytes) / ms / 1e6:.4g} GB/s, {name}")


def transpose(bound, shape, target):
    """Check that `tw.col2im` is the transpose: sum(im2col(x) * y) = sum(x * col2im(y)) for random x and y."""
    geometry = {name: bound.constants[name] for name in ("taps", "stride", "dilation", "padding")}
    rng = np.random.default_rng(1)
    x = rng.integers(-4, 5, shape).astype(np.float32)
    matrix = matrix_of(windows(x, **geometry))
    y = rng.integers(-4, 5, matrix.shape).astype(np.float32)
    taps = geometry.pop("taps")
    Y, image = device_put(y, target), device_put(np.full(shape, np.nan, np.float32), target)
    tw.col2im(Y, out=image, spatial=SPATIAL, filter=taps, group=4, target=target, **geometry)
    sums = [int(np.vdot(one, other)) for one, other in ((matrix, y), (x, device_get(image)))]
    assert sums[0] == sums[1], f"{sums[0]} differs from {sums[1]}"
    print(
        f"col2im<{target}, f32, {'x'.join(map(str, shape))}>: the sum of all products is {sums[0]} both ways"
    )


def main():
    asked = tw.testing.parse_args(__doc__, SHAPES, dict.fromkeys(SHAPES, SMALL))
    attempt(LARGE, asked.shape, asked.target)
    attempt(RAGGED, RAGGED_SHAPE, asked.target)
    transpose(RAGGED, RAGGED_SHAPE, asked.target)


if __name__ == "__main__":
    main()
