"""Compiling, caching and launching kernels on the caller's arrays."""
