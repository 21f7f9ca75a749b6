"""Attention, and chains of two products: their dataflow kernels and the problems that these serve."""
