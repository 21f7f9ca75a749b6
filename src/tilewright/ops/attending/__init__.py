"""Attention: its explicit kernels, and which of them serves a problem."""
