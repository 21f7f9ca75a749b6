"""Dataflow kernels: a graph of values over spans of dimensions, and its evaluation in NumPy."""
