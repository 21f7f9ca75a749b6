"""A regression over many observations by one product, X^T X, with split K and sums in a fixed order.

    python examples/work/skinny_gram.py [--small] [--target cuda|cpu|reference] [--picture FILE.png]

X (observations, columns) is tall, so X^T X is one small tile, and all work lies along K.  A single block
would add up everything in one f32, whose error grows with the number of observations.  With ``split_k`` each
block sums one part of K, and the parts are added in order, whichever block finishes first.  The bits are
therefore the same at every run, and the error falls with the length of a part.

The columns are a constant 1, correlated variables and, last, the variable to be explained.  Their Gram matrix
therefore holds all that least squares needs, and the correlations of the variables as well.
"""

from __future__ import annotations

import numpy as np

import tilewright as tw
from tilewright.testing import device_get, device_put, parse_args

# Observations, columns.
SHAPES = {"cuda": (1_000_000, 32), "cpu": (400_000, 32), "reference": (3000, 8)}
SMALL = {"cuda": (20_011, 16), "cpu": (20_011, 16), "reference": (700, 8)}
PARTS = (1, 8, 64, 512)  # of 64 observations or more
ROUNDOFF, STEP = 2.0**-24, 1024


def observations(rng, count, columns):
    """Return X (count, columns) in f32, and the coefficients that generated its last column."""
    x = rng.standard_normal((count, columns), np.float32)
    mixed = np.eye(columns, dtype=np.float32) + 0.3 * rng.standard_normal((columns, columns), np.float32)
    x = x @ (mixed * np.geomspace(1, 0.1, columns, dtype=np.float32)) + np.float32(0.5)
    x[:, 0] = 1
    coefficients = rng.normal(size=columns - 1)
    noise = 2 * rng.standard_normal(count, np.float32)
    x[:, -1] = x[:, :-1] @ coefficients.astype(np.float32) + noise
    return x, coefficients


def in_double(x, absolute=False):
    """Compute X^T X in f64, from a part of the rows at a time."""
    parts = (x[at : at + 2**16].astype(np.float64) for at in range(0, len(x), 2**16))
    return sum(part.T @ part for part in (map(np.abs, parts) if absolute else parts))


def least_squares(gram, count):
    """Return coefficients that explain the last column by the others, and their standard errors."""
    inverse = np.linalg.inv(gram[:-1, :-1])
    found = inverse @ gram[:-1, -1]
    variance = (gram[-1, -1] - gram[:-1, -1] @ found) / (count - len(found))
    return found, np.sqrt(variance * np.diagonal(inverse))


def correlations(gram):
    """Return eigenvalues of the variables' correlation matrix, the largest first."""
    covariance = gram[1:-1, 1:-1] / gram[0, 0] - np.outer(gram[0, 1:-1], gram[0, 1:-1]) / gram[0, 0] ** 2
    scale = np.sqrt(np.diagonal(covariance))
    return np.linalg.eigvalsh(covariance / np.outer(scale, scale))[::-1]


def draw(path, true, found, errors, spectra, offs, bounds):
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 3.2), layout="constrained")
    left, middle, right = figure.subplots(1, 3)
    left.axhline(0, color="0.6", linewidth=0.8)
    left.errorbar(range(len(true)), found - true, yerr=1.96 * errors, fmt=".", capsize=2, linewidth=0.8)
    left.set(xlabel="coefficient", ylabel="found - true")
    left.set_title("regression, with 95 % intervals", fontsize=9)
    for (name, values), mark in zip(spectra.items(), "ox", strict=True):
        middle.semilogy(range(1, len(values) + 1), values, mark, fillstyle="none", label=name)
    middle.set(xlabel="principal component", ylabel="share of variance x variables")
    middle.set_title("eigenvalues of the correlations", fontsize=9)
    middle.legend(fontsize=7)
    right.loglog(list(offs), list(offs.values()), "o-", label="largest relative error")
    right.loglog(list(bounds), list(bounds.values()), "k--", linewidth=0.9, label="bound")
    right.set(xlabel="parts of K")
    right.set_title("error of X$^T$X against f64", fontsize=9)
    right.legend(fontsize=7)
    figure.savefig(path, dpi=100)


def main():
    asked = parse_args(__doc__, SHAPES, SMALL, picture=True)
    (count, columns), target = asked.shape, asked.target
    x, true = observations(np.random.default_rng(0), count, columns)
    exact, size = in_double(x), in_double(x, absolute=True)
    X = device_put(x, target)
    print(f"skinny_gram<{target}, f32>: X^T X of {count} x {columns}")
    offs, bounds = {}, {}
    for parts in (one for one in PARTS if one * 64 <= count):
        runs = [
            device_get(tw.matmul(X.T, X, split_k=parts, reduction="workspace", target=target))
            for _ in range(3)
        ]
        assert all(np.array_equal(run, runs[0]) for run in runs), "the bits of a run are those of every run"
        gram = runs[0].astype(np.float64)
        # A number passes the additions of its part, which has whole steps, and then those of all parts.
        bounds[parts] = (-(-count // parts) + STEP + parts) * ROUNDOFF
        offs[parts] = np.max(np.abs(gram - exact) / size)
        assert offs[parts] <= bounds[parts], f"an element is off by {offs[parts]}"
        print(f"  {parts:3} parts: the same bits three times, relative error {offs[parts]:.1e}")
    found, errors = least_squares(gram, count)
    away = np.abs(found - true) / errors
    assert away.max() < 5, f"a coefficient is {away.max()} standard errors from the true one"
    double, _ = least_squares(exact, count)
    moved = np.max(np.abs(found - double) / errors)
    assert moved < 0.1, f"f32 moves a coefficient by {moved} standard errors"
    print(f"  {len(true)} coefficients: within {away.max():.1f} standard errors of the true ones;")
    print(f"  sums in f32 move them by {moved:.1e} standard errors")
    if asked.picture:
        spectra = {f"f32, {parts} parts": correlations(gram), "f64": correlations(exact)}
        draw(asked.picture, true, found, errors, spectra, offs, bounds)


if __name__ == "__main__":
    main()
