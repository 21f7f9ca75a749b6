"""Epilogues: the computation on the sums of a tile, and the stores to global memory."""
