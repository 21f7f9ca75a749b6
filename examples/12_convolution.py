"""A convolution in eight lines: an im2col view of the image, which is never materialized, times the filter.

    python examples/12_convolution.py [--small] [--target cuda|cpu|reference]

Images (N, H, W, C) and a filter (O, taps x C) give results (N x positions, O), with a bias and a ReLU.  Every
element is compared with NumPy's windows.  The program also times the product of an im2col matrix that NumPy
made before; the difference is the cost of the view.
"""

from __future__ import annotations

import numpy as np

import tilewright as tw
from tilewright.testing import device_get, device_put, do_bench, parse_args

SHAPES = {"cuda": (32, 56, 56, 64, 128), "cpu": (4, 28, 28, 32, 64), "reference": (1, 7, 6, 8, 24)}
SMALL = {"cuda": (2, 9, 8, 16, 40), "cpu": (2, 9, 8, 16, 40), "reference": (1, 7, 6, 8, 24)}


@tw.kernel(X="N H W C", F="O T", bias="O", Y="P O")
def convolution(X, F, bias, Y, *, taps, stride, padding):
    image = X.im2col(spatial=(1, 2), filter=taps, stride=stride, padding=padding)
    tw.require(image.shape[0] == Y.shape[0], "Y has a row for each position of the filter in each image")
    tw.require(image.shape[1] == F.shape[1], "F has a column for each channel of each tap")
    for m, n in tw.tiles(Y):
        acc = tw.zeros()
        for k in tw.steps(F.shape[1]):
            acc += image[m, k] @ F[n, k].T
        Y[m, n] = tw.relu(acc + bias[n])


def windows(image, taps, stride, padding):
    """Compute the im2col matrix by NumPy: a row for each position, a column for each channel of each tap."""
    padded = np.pad(image, ((0, 0), (padding, padding), (padding, padding), (0, 0)))
    seen = np.lib.stride_tricks.sliding_window_view(padded, taps, (1, 2))[:, ::stride, ::stride]
    return seen.transpose(0, 1, 2, 4, 5, 3).reshape(-1, taps[0] * taps[1] * image.shape[3])


def check(result, matrix, filters, bias):
    """Assert that each error is within the roundings of T sums in f32, and of the result to f16."""
    wide, weights = matrix.astype(np.float64), filters.T.astype(np.float64)
    exact = np.maximum(wide @ weights + bias, 0)
    summed = 8 * np.sqrt(wide.shape[1]) * 2.0**-24 * (np.abs(wide) @ np.abs(weights) + np.abs(bias))
    off = np.abs(result.astype(np.float64) - exact)
    assert (off <= summed + 2.0**-11 * exact + 2.0**-25).all(), f"an element is off by {off.max()}"


def run(target, shape, outputs, taps, stride, padding):
    """Check one convolution, then time it and the product of a ready im2col matrix."""
    rng = np.random.default_rng(0)
    x = rng.standard_normal(shape).astype(np.float16)
    f = rng.standard_normal((outputs, taps[0] * taps[1] * shape[3])).astype(np.float16)
    bias = rng.standard_normal(outputs).astype(np.float16)
    matrix = np.ascontiguousarray(windows(x, taps, stride, padding))
    X, F, B, M = (device_put(array, target) for array in (x, f, bias, matrix))
    Y = device_put(np.full((matrix.shape[0], outputs), np.nan, np.float16), target)
    bound = convolution.bind(taps=taps, stride=stride, padding=padding)
    ran = bound(X, F, B, Y, target=target)
    check(device_get(Y), matrix, f, bias)
    name = f"convolution<{ran.target}, f16, {'x'.join(map(str, shape))}, {taps[0]}x{taps[1]}>"
    print(f"{name}: all {matrix.shape[0]} x {outputs} elements are right")
    if target != "reference":
        tflops = 2e-9 * matrix.size * outputs
        ms = do_bench(lambda: bound(X, F, B, Y, target=target), target)
        alone = do_bench(lambda: tw.matmul(M, F.T, Y, bias=B, activation="relu", target=target), target)
        print(f"Perf: {ms:.4f} ms, {tflops / ms:.3f} TFlops; the product of the matrix alone {alone:.4f} ms")


def main():
    asked = parse_args(__doc__, SHAPES, SMALL)
    *shape, outputs = asked.shape
    for taps, stride, padding in (((3, 3), 1, 1), ((1, 1), 1, 0), ((3, 2), 2, 1)):
        run(asked.target, shape, outputs, taps, stride, padding)


if __name__ == "__main__":
    main()
