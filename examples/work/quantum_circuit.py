"""A random quantum circuit, simulated by complex matrix products, and compared with exact amplitudes.

    python examples/work/quantum_circuit.py [--small] [--target cuda|cpu|reference] [--picture FILE.png]

The state of n qubits is a vector of 2**n complex amplitudes, seen as a matrix of 2**w rows.  Multiplied from
the left by a matrix of 2**w x 2**w, it passes a gate on the first w qubits.  All gates of a layer on w
neighbouring qubits are fused to one such matrix beforehand.  The product writes its result transposed, by
choosing strides.  This rotates the ring of qubits by w, so that the next w come first.  Every layer is
therefore the same product, by the same kernel, and no permutation is needed.

The exact amplitudes come from NumPy in complex128, gate by gate, two qubits at a time and without fusing.
"""

from __future__ import annotations

import numpy as np

import tilewright as tw
from tilewright.testing import device_get, device_put, parse_args

# Qubits, qubits of a fused matrix, layers.  Matrices overlap at the end, because 6 does not divide 16.
SHAPES = {"cuda": (17, 6, 36), "cpu": (16, 6, 32), "reference": (8, 3, 8)}
SMALL = {"cuda": (12, 5, 12), "cpu": (12, 5, 12), "reference": (7, 3, 4)}
ROUNDOFF = 2.0**-24


def random_unitary(rng):
    """Draw a gate on two qubits, uniformly from all unitary 4 x 4 matrices."""
    q, r = np.linalg.qr(rng.standard_normal((4, 4)) + 1j * rng.standard_normal((4, 4)))
    return q * (np.diagonal(r) / np.abs(np.diagonal(r)))


def layer_of_gates(rng, width):
    """Draw gates on neighbouring qubits, like bricks in a wall of ``width`` qubits: (matrix, first qubit)."""
    first = [*range(0, width - 1, 2), *range(1, width - 1, 2)]
    return [(random_unitary(rng), qubit) for qubit in first]


def applied(gate, amplitudes, qubits):
    """Apply a gate to two axes of an array that has one axis for each qubit."""
    moved = np.tensordot(gate.reshape(2, 2, 2, 2), amplitudes, axes=((2, 3), qubits))
    return np.moveaxis(moved, (0, 1), qubits)


def fused(gates, width):
    """Return the matrix (2**width, 2**width) of several gates, one after the other."""
    columns = np.eye(2**width, dtype=np.complex128).reshape((2,) * width + (2**width,))
    for gate, qubit in gates:
        columns = applied(gate, columns, (qubit, qubit + 1))
    return columns.reshape(2**width, 2**width)


def exactly(layers, qubits, width):
    """Return amplitudes after each layer; layer t acts on qubits from ``t * width`` on, around the ring."""
    amplitudes = np.zeros((2,) * qubits, np.complex128)
    amplitudes[(0,) * qubits] = 1
    for number, gates in enumerate(layers):
        for gate, qubit in gates:
            at = number * width + qubit
            amplitudes = applied(gate, amplitudes, (at % qubits, (at + 1) % qubits))
        yield amplitudes


def simulated(matrices, qubits, width, target):
    """Return the state after each layer; its qubits are rotated so that the next layer's come first."""
    rows, columns = 2**width, 2 ** (qubits - width)
    start = np.zeros(2**qubits, np.complex64)
    start[0] = 1
    state, other = device_put(start, target), device_put(np.full_like(start, np.nan), target)
    for matrix in matrices:
        gate = device_put(matrix.astype(np.complex64), target)
        turned = other.reshape(columns, rows).T
        tw.complex_matmul(gate, state.reshape(rows, columns), out=turned, target=target)
        state, other = other, state
        yield device_get(state)


def check(state, exact, layers, width):
    """Assert that rounding explains the distance of a state from the exact one; return it and its bound.

    An amplitude sums 2 K = 2**(width + 1) products, each with a rounding of u in f32.  Gates preserve the
    length of a vector.  If roundings are independent, a layer therefore adds an error of about sqrt(2 K) u,
    and layers add up like steps of a random walk.  The error stays below four times that.
    """
    bound = 4 * np.sqrt(layers * 2 ** (width + 1)) * ROUNDOFF
    off = np.linalg.norm(state - exact)
    assert off <= bound, f"off by {off} after {layers} layers, more than {bound}"
    return off, bound


def draw(path, exact, state, infidelities, bound):
    from matplotlib.colors import hsv_to_rgb
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 3.2), layout="constrained")
    image, counts, losses = figure.subplots(1, 3)
    seen = state.ravel()[:4096].reshape(64, -1)
    brightness = np.clip(np.abs(seen) * np.sqrt(state.size) / 2.5, 0, 1)
    hue = np.angle(seen) / (2 * np.pi) % 1
    image.imshow(hsv_to_rgb(np.stack([hue, np.full_like(hue, 0.8), brightness], -1)), interpolation="nearest")
    image.set_title(
        f"{seen.size} of {state.size} amplitudes:\nhue is phase, brightness magnitude", fontsize=9
    )
    image.set_axis_off()
    edges = np.linspace(0, 8, 33)
    exact, found = (np.abs(one.ravel()) ** 2 * state.size for one in (exact, state))
    counts.hist(exact, edges, density=True, color="0.8", label="exact")
    counts.hist(found, edges, density=True, histtype="step", label="tilewright")
    counts.plot(edges, np.exp(-edges), "k--", linewidth=0.9, label="exp(-x): Porter, Thomas")
    counts.set(yscale="log", xlabel="probability of an outcome / mean")
    counts.set_title("how often outcomes are how likely", fontsize=9)
    counts.legend(fontsize=7)
    losses.semilogy(range(1, len(infidelities) + 1), infidelities, ".-", markersize=4, linewidth=0.8)
    losses.axhline(bound**2, color="k", linestyle="--", linewidth=0.9)
    losses.set(xlabel="layers of gates")
    losses.set_title("1 - fidelity; dashed: its bound", fontsize=9)
    figure.savefig(path, dpi=100)


def main():
    asked = parse_args(__doc__, SHAPES, SMALL, picture=True)
    (qubits, width, count), target = asked.shape, asked.target
    rng = np.random.default_rng(2024)
    layers = [layer_of_gates(rng, width) for _ in range(count)]
    matrices = [fused(gates, width) for gates in layers]
    infidelities = []
    steps = zip(simulated(matrices, qubits, width, target), exactly(layers, qubits, width), strict=True)
    for number, (turned, exact) in enumerate(steps, 1):
        # Axis j is qubit first[j]; sort the axes before comparing.
        first = np.roll(range(qubits), -number * width)
        state = np.moveaxis(turned.reshape((2,) * qubits), range(qubits), first)
        off, bound = check(state, exact, number, width)
        overlap = np.vdot(exact, state) / (np.linalg.norm(exact) * np.linalg.norm(state))
        # 1 - |overlap|^2, computed without cancellation.
        infidelities.append(float(np.linalg.norm(state / np.linalg.norm(state) - overlap * exact) ** 2))
    gates = sum(map(len, layers))
    print(f"quantum_circuit<{target}, c64>: {qubits} qubits, {gates} gates, {count} products on {width} each")
    print(f"  all {2**qubits} amplitudes are right: off by {off:.1e} as a vector, bound {bound:.1e}")
    print(f"  fidelity 1 - {infidelities[-1]:.1e}")
    if asked.picture:
        draw(asked.picture, exact, state, infidelities, bound)


if __name__ == "__main__":
    main()
