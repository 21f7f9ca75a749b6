"""Directions of radio sources, from beams of an antenna array: products of complex planes in f16.

    python examples/work/beamforming.py [--small] [--target cuda|cpu|reference] [--picture FILE.png]

The receiver of each antenna in a square array delivers in-phase and quadrature samples: the real and the
imaginary plane of X (antennas, snapshots).  A beam towards a direction adds up all antennas with the phases W
(antennas, directions) of a wave from there.  The power of all beams, mean |W^H X|^2, is a picture of the sky.
One product computes it for thousands of directions, and planes are never interleaved.

Delay-and-sum beams merge two sources that are closer than the array's resolution.  Capon's beams separate
them.  Their weights R^-1 w / (w^H R^-1 w) use the covariance R = X X^H / snapshots, which is a product, too.
"""

from __future__ import annotations

import numpy as np

import tilewright as tw
from tilewright.testing import device_get, device_put, parse_args

# Antennas along a side, directions along a side, snapshots.
SHAPES = {"cuda": (12, 101, 1024), "cpu": (10, 81, 400), "reference": (6, 17, 40)}
SMALL = {"cuda": (8, 33, 128), "cpu": (8, 33, 128), "reference": (5, 9, 24)}
# Direction cosines (u, v) in units of the resolution 2 / side, and amplitudes; noise has amplitude 1.
SOURCES = ((-2.4, -1.2, 1.0), (1.8, 2.4, 0.7), (1.2, -2.4, 1.0), (1.9, -2.4, 1.0))
U16, U32 = 2.0**-11, 2.0**-24


def steering(side, directions):
    """Return phases (antennas, directions) of waves from (u, v); antennas are half a wavelength apart."""
    at = np.stack(np.meshgrid(np.arange(side), np.arange(side), indexing="ij"), -1).reshape(-1, 2)
    return np.exp(1j * np.pi * at @ directions.T)


def normal(rng, *shape):
    """Draw complex normal numbers of variance 1."""
    return rng.standard_normal((*shape, 2)).view(np.complex128)[..., 0] / np.sqrt(2)


def planes(numbers, dtype=np.float16):
    """Return the real and the imaginary plane as a pair."""
    return np.ascontiguousarray(numbers.real, dtype), np.ascontiguousarray(numbers.imag, dtype)


def joined(pair):
    """Return planes, from any device, as complex128."""
    re, im = (device_get(plane).astype(np.float64) for plane in pair)
    return re + 1j * im


def product(a, b, target, **conjugated):
    """Multiply planes in f16 with sums in f32, and compare each element with complex128."""
    here = [tuple(device_put(plane, target) for plane in pair) for pair in (a, b)]
    shape = a[0].shape[0], b[0].shape[1]
    out = tuple(device_put(np.full(shape, np.nan, np.float32), target) for _ in range(2))
    made = joined(tw.complex_matmul(*here, out=out, target=target, **conjugated))
    wide = [joined(pair) for pair in (a, b)]
    for number, name in enumerate(("conjugate_a", "conjugate_b")):
        wide[number] = wide[number].conj() if conjugated.get(name) else wide[number]
    exact = wide[0] @ wide[1]
    # Each part sums 2 K exact products in f32; their roundings are independent.
    bound = 4 * U32 * np.sqrt(4 * wide[0].shape[1]) * (np.abs(wide[0]) @ np.abs(wide[1])) + U32 * np.abs(
        exact
    )
    off = np.abs(made - exact)
    assert (off <= bound).all(), f"an element is off by {off.max()}"
    return made, off.max()


def peaks(sky, count):
    """Return the ``count`` highest points of a picture that exceed their eight neighbours."""
    wall = np.pad(sky, 1, constant_values=-np.inf)
    rows, columns = sky.shape
    around = [wall[i : i + rows, j : j + columns] for i in range(3) for j in range(3) if (i, j) != (1, 1)]
    tops = np.where(sky > np.max(around, axis=0), sky, -np.inf)
    best = np.argsort(tops, axis=None)[::-1][:count]
    return np.stack(np.unravel_index(best, sky.shape), -1)


def draw(path, skies, grid, true, found):
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 4), layout="constrained")
    for axes, (name, sky) in zip(figure.subplots(1, 2, sharey=True), skies.items(), strict=True):
        decibels = 10 * np.log10(sky / sky.max())
        half = (grid[1] - grid[0]) / 2
        box = (grid[0] - half, grid[-1] + half) * 2
        image = axes.imshow(decibels.T, origin="lower", extent=box, vmin=-20, cmap="viridis")
        axes.plot(*true.T, "o", markersize=12, markerfacecolor="none", color="white", label="true direction")
        axes.plot(*found[name].T, "x", color="red", markersize=6, label="highest peaks")
        axes.set(xlabel="direction cosine u")
        axes.set_title(name, fontsize=10)
    axes.legend(fontsize=7, loc="upper left")
    figure.axes[0].set_ylabel("direction cosine v")
    figure.colorbar(image, ax=figure.axes, label="power, dB below the highest")
    figure.savefig(path, dpi=100)


def main():
    asked = parse_args(__doc__, SHAPES, SMALL, picture=True)
    (side, directions, snapshots), target = asked.shape, asked.target
    rng = np.random.default_rng(7)
    sources = np.array(SOURCES)
    grid = np.linspace(-0.75, 0.75, directions)
    true = np.clip(sources[:, :2] * 2 / side, grid[0], grid[-1])
    looks = np.stack(np.meshgrid(grid, grid, indexing="ij"), -1).reshape(-1, 2)
    signals = sources[:, 2:] * normal(rng, len(sources), snapshots)
    samples = planes(steering(side, true) @ signals + normal(rng, side**2, snapshots))

    weights = steering(side, looks) / side
    beams, off = product(planes(weights.conj().T), samples, target)
    print(f"beamforming<{target}, f16>: {len(looks)} beams, {side**2} antennas, {snapshots} snapshots")
    print(f"  all beams are right, off by {off:.1e} at most")
    covariance, off = product(samples, tuple(plane.T for plane in samples), target, conjugate_b=True)
    print(f"  covariance: all elements are right, off by {off / snapshots:.1e} at most")
    whitened = np.linalg.solve(covariance / snapshots, weights)
    capon, off = product(
        planes((whitened / np.sum(weights.conj() * whitened, axis=0)).conj().T), samples, target
    )
    print(f"  Capon's beams: all are right, off by {off:.1e} at most")
    shape = directions, directions
    skies = {
        name: np.mean(np.abs(seen) ** 2, axis=1).reshape(shape)
        for name, seen in (("delay and sum", beams), ("Capon", capon))
    }
    found = {name: grid[peaks(sky, len(sources))] for name, sky in skies.items()}
    for name, seen in found.items():
        away = np.abs(seen[:, None] - true).max(-1).min(0) / (2 / side)
        print(f"  {name}: peaks are {', '.join(f'{one:.2f}' for one in away)} resolutions from the sources")
    step = grid[1] - grid[0]
    assert asked.small or target == "reference" or (away * 2 / side <= 1.5 * step).all(), (
        "a source is not found"
    )
    if asked.picture:
        draw(asked.picture, skies, grid, true, found)


if __name__ == "__main__":
    main()
