"""Attention, and chains of two products: their problems and dataflow kernels."""
