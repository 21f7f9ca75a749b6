"""A network that reads handwritten digits, with weights in 8 and 4 bits: the loss of accuracy.

    python examples/work/fp8_linear.py [--small] [--target cuda|cpu|reference] [--picture FILE.png]

NumPy trains two layers in f64, on two thirds of the digits that come with scikit-learn.  Then the weights are
stored in 8 bits with a scale for each output, or in 4 bits with a scale for 32 neighbours.  `tw.scaled_mm`
computes each layer in one kernel: it widens the weights while it loads them, scales the sums, adds the bias
and applies the activation.  In the last format the inputs of a layer have 8 bits as well, with a scale for
each digit.

Every element of every layer is compared with f64 on the same narrow numbers.  Accuracy is measured on digits
that training has not seen.  Needs scikit-learn: ``pip install 'tilewright[work]'``.
"""

from __future__ import annotations

import sys
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise

import numpy as np

import tilewright as tw
from tilewright.testing import device_get, device_put, parse_args

try:
    from sklearn.datasets import load_digits
except ImportError:
    sys.exit("the digits come with scikit-learn: pip install 'tilewright[work]'")

# Widths of the layers, rounds of training, digits to test.
SHAPES = {"cuda": (64, 128, 10, 40, 599), "cpu": (64, 128, 10, 40, 599), "reference": (64, 32, 10, 20, 100)}
SMALL = dict.fromkeys(SHAPES, (64, 32, 10, 10, 50))
GROUP = 32
LARGEST = {"f8e4m3": 448.0, "f8e5m2": 57344.0, "i8": 127.0, "i4": 7.0}
HELD = {kind: np.int8 if kind == "i4" else tw.dtype(kind).numpy for kind in LARGEST}  # before `tw.pack`
# The format of the weights, and that of the inputs.
FORMATS = {
    "e4m3": ("f8e4m3", "f16"),
    "e5m2": ("f8e5m2", "f16"),
    "int8": ("i8", "f16"),
    "int4, groups": ("i4", "f16"),
    "e4m3 x e4m3": ("f8e4m3", "f8e4m3"),
}
U16, U32 = 2.0**-11, 2.0**-24


def digits(rng, count):
    """Return images (1797, 64) with pixels from 0 to 1, and their digits, for training and for testing."""
    found = load_digits()
    order = rng.permutation(len(found.target))
    x, label = found.data[order] / 16, found.target[order]
    return (x[:1198], label[:1198]), (x[1198:][:count], label[1198:][:count])


def forward(layers, x):
    """Return the inputs of each layer, and the last layer's outputs."""
    seen = [x]
    for number, (weights, bias) in enumerate(layers, 1):
        y = seen[-1] @ weights + bias
        seen.append(np.maximum(y, 0) if number < len(layers) else y)
    return seen


def trained(rng, x, label, widths, rounds):
    """Train layers (weights (K, N), bias (N,)) that minimise the cross entropy, by Adam."""
    layers = [[rng.standard_normal((k, n)) * np.sqrt(2 / k), np.zeros(n)] for k, n in pairwise(widths)]
    moments = [[[np.zeros_like(p), np.zeros_like(p)] for p in layer] for layer in layers]
    one, step = np.eye(10), 0
    for _ in range(rounds):
        for batch in np.array_split(rng.permutation(len(x)), len(x) // 50):
            step += 1
            seen = forward(layers, x[batch])
            odds = np.exp(seen[-1] - seen[-1].max(1, keepdims=True))
            slope = (odds / odds.sum(1, keepdims=True) - one[label[batch]]) / len(batch)
            for layer, moment, given in reversed([*zip(layers, moments, seen[:-1], strict=True)]):
                slopes = given.T @ slope, slope.sum(0)
                slope = (slope @ layer[0].T) * (given > 0)
                for parameter, (mean, square), g in zip(layer, moment, slopes, strict=True):
                    mean += 0.1 * (g - mean)
                    square += 0.001 * (g * g - square)
                    unbiased = mean / (1 - 0.9**step), square / (1 - 0.999**step)
                    parameter -= 0.002 * unbiased[0] / (np.sqrt(unbiased[1]) + 1e-8)
    return layers


def stored(numbers, kind, axis):
    """Return numbers in a format, and scales that map maxima along ``axis`` to the format's maximum."""
    largest = np.maximum(np.abs(numbers).max(axis=axis, keepdims=True), 1e-6)
    scale = (largest / LARGEST[kind]).astype(np.float16 if kind == "i4" else np.float32)
    narrow = np.clip(numbers / scale, -LARGEST[kind], LARGEST[kind])
    return (np.rint(narrow) if kind.startswith("i") else narrow).astype(HELD[kind]), scale


def stored_weights(weights, kind, target):
    """Return weights (K, N) as arguments of `tw.scaled_mm`, and the numbers in f64 that they represent."""
    if kind != "i4":  # a scale for each output
        narrow, scale = stored(weights, kind, 0)
        given = {"b": device_put(narrow, target), "scale_b": device_put(scale[0], target)}
        return given, narrow.astype(np.float64) * scale
    # Two per byte, and a scale for 32 weights of each output; the scaled weights are rounded to f16.
    codes, scale = stored(weights.reshape(-1, GROUP, weights.shape[1]), kind, 1)
    widened = (codes.astype(np.float64) * scale).astype(np.float16).reshape(weights.shape)
    held = device_put(tw.pack(codes.reshape(weights.shape).T, tw.i4), target)
    given = {"b": tw.packed(held.T, tw.i4), "scale_b": device_put(scale[:, 0], target), "group": GROUP}
    return given, widened.astype(np.float64)


def linear(x, kind, weights, bias, activation, target):
    """Compute a layer by `tw.scaled_mm`, verify it, and return it with its largest error per bound."""
    given, exact_weights = weights
    held, bias = dict(given), bias.astype(np.float32)
    narrow, exact_x = x.astype(np.float16), x.astype(np.float16).astype(np.float64)
    if kind != "f16":  # a scale for each digit
        narrow, scale = stored(x, kind, 1)
        held["scale_a"], exact_x = device_put(scale[:, 0], target), narrow.astype(np.float64) * scale
    out = device_put(np.full((len(x), len(bias)), np.nan, np.float16), target)
    held |= {"a": device_put(narrow, target), "bias": device_put(bias, target), "out": out}
    y = device_get(tw.scaled_mm(**held, activation=activation, target=target)).astype(np.float64)
    exact = exact_x @ exact_weights + bias
    exact = np.maximum(exact, 0) if activation else exact
    # Sums of K products in f32, scales and bias; then one rounding to f16, or to a multiple of 2**-24.
    sums = (x.shape[1] + 6) * U32 * (np.abs(exact_x) @ np.abs(exact_weights)) + U32 * np.abs(bias)
    off = np.abs(y - exact)
    bound = sums + U16 * (np.abs(exact) + sums) + 2.0**-25
    assert (off <= bound).all(), f"an element is off by {off.max()}"
    return y, float(np.max(off / bound))


def read(layers, x, formats, target):
    """Return the network's outputs with weights and inputs in a format, and the largest error per bound."""
    worst = 0.0
    for number, (weights, bias) in enumerate(layers, 1):
        activation = "relu" if number < len(layers) else None
        x, share = linear(
            x, formats[1], stored_weights(weights, formats[0], target), bias, activation, target
        )
        worst = max(worst, share)
    return x, worst


def draw(path, images, label, logits, accuracy):
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 3.4), layout="constrained")
    left, middle, right = figure.subplots(1, 3)
    names, shares = list(accuracy), 100 * np.array(list(accuracy.values()))
    errors = np.sqrt(shares * (100 - shares) / len(label))
    left.errorbar(shares, range(len(names)), xerr=errors, fmt="o", capsize=3)
    left.axvline(shares[0], color="0.6", linewidth=0.8)
    left.set_yticks(range(len(names)), names, fontsize=8)
    left.invert_yaxis()
    left.set(xlabel="% of unseen digits read right")
    left.set_title("before (f64), and by weights x inputs", fontsize=9)
    guess = logits.argmax(1)
    confusion = np.zeros((10, 10), int)
    np.add.at(confusion, (label, guess), 1)
    middle.imshow(np.log1p(confusion), cmap="Blues")
    for (i, j), count in np.ndenumerate(confusion):
        if count:
            middle.text(j, i, str(count), ha="center", va="center", fontsize=7, color="w" if i == j else "k")
    middle.set(xlabel="read", ylabel="shown", xticks=range(10), yticks=range(10))
    middle.set_title("weights in e4m3", fontsize=9)
    wrong = np.flatnonzero(guess != label)[:12]
    sheet = np.full((3 * 12, 4 * 9), np.nan)
    for place, one in enumerate(wrong):
        row, column = divmod(place, 4)
        sheet[12 * row + 3 : 12 * row + 11, 9 * column : 9 * column + 8] = images[one].reshape(8, 8)
        text = f"{label[one]} read as {guess[one]}"
        right.text(9 * column + 3.5, 12 * row + 1.2, text, ha="center", va="center", fontsize=7)
    right.imshow(sheet, cmap="gray_r")
    right.set_axis_off()
    right.set_title(f"{'all' if len(wrong) < 12 else 'twelve'} that it misreads", fontsize=9)
    figure.savefig(path, dpi=100)


def main():
    asked = parse_args(__doc__, SHAPES, SMALL, picture=True)
    *widths, rounds, count = asked.shape
    rng = np.random.default_rng(0)
    (x, label), (unseen, answer) = digits(rng, count)
    layers = trained(rng, x, label, widths, rounds)
    before = forward(layers, unseen)[-1]
    accuracy = {"f64, NumPy": float(np.mean(before.argmax(1) == answer))}
    sizes = "-".join(map(str, widths))
    print(f"fp8_linear<{asked.target}>: layers {sizes}, {len(x)} digits to train, {len(answer)} to test")
    print(f"  f64, by NumPy: {accuracy['f64, NumPy']:.2%} read right")
    outputs = {}
    with ThreadPoolExecutor(2) as pool:  # compile two kernels at the same time
        found = pool.map(lambda formats: read(layers, unseen, formats, asked.target), FORMATS.values())
    for name, (outputs[name], worst) in zip(FORMATS, found, strict=True):
        accuracy[name] = float(np.mean(outputs[name].argmax(1) == answer))
        off = np.linalg.norm(outputs[name] - before) / np.linalg.norm(before)
        print(f"  {name}: {accuracy[name]:.2%}; outputs move by {off:.1%}; at most {worst:.2f} of the bound")
        lost = (accuracy["f64, NumPy"] - accuracy[name]) * len(answer)
        assert lost <= 1 + 0.01 * len(answer), (
            f"{name} loses {lost:.0f} digits, more than 1 % of them and one"
        )
    if asked.picture:
        draw(asked.picture, unseen, answer, outputs["e4m3"], accuracy)


if __name__ == "__main__":
    main()
