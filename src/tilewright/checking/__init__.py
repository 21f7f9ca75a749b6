"""Whether a result is right: matrices to try, oracles, and the comparison with its bound."""
