"""Passes: kernel to kernel, each making one decision explicit in the same IR."""
