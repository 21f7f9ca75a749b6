"""Epilogues: what is computed from the sums of a tile, and how it comes to global memory."""
