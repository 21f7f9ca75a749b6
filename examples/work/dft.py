"""A discrete Fourier transform as two complex matrix products, against NumPy's.

    python examples/work/dft.py [--small] [--target cuda|cpu|reference] [--picture FILE.png]

With N = n1 * n2, a sample's number s = n2 * s1 + s2 and a frequency's f = f1 + n1 * f2, the transform is

    y[s2, f1] = exp(-2 pi i s2 f1 / N) * sum over s1 of x[s1, s2] exp(-2 pi i s1 f1 / n1)
    X[f2, f1] = sum over s2 of exp(-2 pi i f2 s2 / n2) y[s2, f1]

Both sums are matrix products, for all frames of a signal at once.  The first is a kernel of this program.  It
reads x through transposed strides, and multiplies its sums by the factor in front of them before it stores
them.  The second is `tw.complex_matmul`; its result [f2, f1], row by row, has the frequencies in order.
"""

from __future__ import annotations

import numpy as np

import tilewright as tw
from tilewright.testing import device_get, device_put, parse_args

# Frames, n1, n2.
SHAPES = {"cuda": (256, 64, 128), "cpu": (96, 32, 48), "reference": (3, 16, 8)}
SMALL = {"cuda": (20, 16, 32), "cpu": (20, 16, 32), "reference": (2, 8, 5)}
ROUNDOFF = {np.complex64: 2.0**-24, np.complex128: 2.0**-53}


@tw.kernel(Xr="B K M", Xi="B K M", Fr="K N", Fi="K N", Tr="M N", Ti="M N", Yr="B M N", Yi="B M N")
def first_stage(Xr, Xi, Fr, Fi, Tr, Ti, Yr, Yi):
    """Y = T * (X^T F) in planes of real and imaginary parts."""
    for b, m, n in tw.tiles(Yr):
        re, im = tw.zeros(), tw.zeros()
        for k in tw.steps(Fr.shape[0]):
            re += Xr[b, k, m].T @ Fr[k, n]
            re -= Xi[b, k, m].T @ Fi[k, n]
            im += Xr[b, k, m].T @ Fi[k, n]
            im += Xi[b, k, m].T @ Fr[k, n]
        Yr[b, m, n] = re * Tr[m, n] - im * Ti[m, n]
        Yi[b, m, n] = re * Ti[m, n] + im * Tr[m, n]


def roots(rows, columns, order):
    """Return exp(-2 pi i r c / order) in complex128; exponents are reduced exactly, so it rounds once."""
    return np.exp(-2j * np.pi * (np.outer(np.arange(rows), np.arange(columns)) % order) / order)


def transformed(frames, n1, n2, target, kind):
    """Transform frames (B, n1 * n2), in complex64 or complex128."""
    count, real = len(frames), np.zeros(1, kind).real.dtype
    given = [frames.reshape(count, n1, n2), roots(n1, n1, n1), roots(n2, n1, n1 * n2)]
    planes = [np.ascontiguousarray(plane, real) for one in given for plane in (one.real, one.imag)]
    held = [device_put(plane, target) for plane in planes]
    y = [device_put(np.full((count, n2, n1), np.nan, real), target) for _ in range(2)]
    assert first_stage(*held, *y, target=target).target == target
    last = device_put(roots(n2, n2, n2).astype(kind), target)
    spectra = device_put(np.full((count, n2, n1), np.nan, kind), target)
    tw.complex_matmul(last, tuple(y), out=spectra, target=target)
    return device_get(spectra).reshape(count, -1)


def bound_of(frames, n1, n2, kind):
    """Return the error bound of each bin of each frame, relative to NumPy's transform in f64.

    A bin sums N numbers of a frame times roots of unity.  Each root is rounded once, the stages add up 2 n1
    and 2 n2 products, and the factor between them takes three more roundings.  So each number passes at most
    2 (n1 + n2) + 6 roundings, in each of two parts.  NumPy's transform has fewer, in f64.
    """
    touched = (2 * (n1 + n2) + 6) * (ROUNDOFF[kind] + ROUNDOFF[np.complex128])
    return np.sqrt(2) * touched * np.abs(frames).sum(axis=1, dtype=np.float64)[:, None]


def signal(rng, frames, length):
    """Return overlapping Hann-windowed frames: a chirp, an FM carrier, a carrier 80 dB below, and noise."""
    time = np.arange((frames + 1) * length // 2) / ((frames + 1) * length // 2)
    turns = len(time) * np.stack(
        [-0.35 * time + 0.3 * time**3, 0.3 * time + 0.002 * np.sin(12 * np.pi * time), 0.15 * time]
    )
    noise = rng.standard_normal((len(time), 2)).view(np.complex128)[:, 0]
    whole = np.array([0.5, 1, 1e-4]) @ np.exp(2j * np.pi * turns) + 1e-5 * noise
    window = 0.5 - 0.5 * np.cos(2 * np.pi * np.arange(length) / length)
    starts = np.arange(frames)[:, None] * (length // 2)
    return (whole[starts + np.arange(length)] * window).astype(np.complex64)


def draw(path, spectra, errors, bounds):
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 3.6), layout="constrained")
    left, right = figure.subplots(1, 2)
    decibels = 20 * np.log10(np.abs(np.fft.fftshift(spectra, axes=1)) / np.abs(spectra).max())
    box = (0, len(spectra), -0.5, 0.5)
    image = left.imshow(decibels.T, origin="lower", aspect="auto", extent=box, vmin=-110, cmap="magma")
    left.set(xlabel="frame", ylabel="frequency / sampling rate")
    left.set_title(f"{len(spectra)} frames of {spectra.shape[1]} samples", fontsize=10)
    figure.colorbar(image, ax=left, label="dB below the highest")
    frequencies = np.linspace(-0.5, 0.5, spectra.shape[1], endpoint=False)
    frame = len(spectra) // 2
    right.semilogy(frequencies, np.fft.fftshift(np.abs(spectra[frame])), "k", linewidth=0.7, label="spectrum")
    for number, (name, error) in enumerate(errors.items()):
        colour = f"C{number}"
        largest = np.fft.fftshift(error[frame]).reshape(-1, 8).max(axis=1)
        right.semilogy(frequencies[4::8], largest, colour, linewidth=0.7, label=f"error in {name}")
        right.axhline(bounds[name][frame], color=colour, linestyle="--", linewidth=0.9, label="its bound")
    right.set(xlabel="frequency / sampling rate", ylim=(1e-17, 1e10))
    right.set_title(f"frame {frame}: magnitude, and largest error of 8 bins", fontsize=10)
    right.legend(fontsize=7, loc="upper left", ncols=2)
    figure.savefig(path, dpi=100)


def main():
    asked = parse_args(__doc__, SHAPES, SMALL, picture=True)
    (count, n1, n2), target = asked.shape, asked.target
    frames = signal(np.random.default_rng(0), count, n1 * n2)
    exact = np.fft.fft(frames.astype(np.complex128))
    print(f"dft<{target}>: {count} frames of {n1} x {n2} samples, largest bin {np.abs(exact).max():.0f}")
    spectra, errors, bounds = {}, {}, {}
    for kind in ROUNDOFF:
        name = kind.__name__
        spectra[name] = transformed(frames, n1, n2, target, kind)
        bounds[name] = bound_of(frames, n1, n2, kind)
        off = errors[name] = np.abs(spectra[name] - exact)
        assert (off <= bounds[name]).all(), f"a bin is off by {off.max()}"
        mean = np.sqrt(np.mean(off**2))
        print(f"  {name}: all bins are right, off by {off.max():.1e} at most, bound {bounds[name].max():.1e}")
        print(
            f"    root mean square error {mean / np.sqrt(np.mean(np.abs(exact) ** 2)):.1e} of the spectrum's"
        )
    if asked.picture:
        draw(asked.picture, spectra["complex64"], errors, bounds)


if __name__ == "__main__":
    main()
