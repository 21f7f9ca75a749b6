"""Kernels without Python: folders with machine code, a C header and launch code; their use from Python."""
