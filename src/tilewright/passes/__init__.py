"""Passes: each maps a kernel to a kernel in the same IR and makes one decision explicit."""
