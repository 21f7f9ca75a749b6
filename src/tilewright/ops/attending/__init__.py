"""Attention: its explicit kernels, and the choice among them."""
