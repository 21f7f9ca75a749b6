"""Inspection of kernels: compiler reports, accesses of copies, machine code, pictures of layouts."""
