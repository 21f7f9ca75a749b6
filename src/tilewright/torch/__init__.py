"""Kernels as operations of PyTorch, with gradients and `torch.compile`: ``import tilewright.torch``."""

from tilewright.torch.layers import attention, col2im, gated_matmul, gemm_chain, grouped_matmul, scaled_mm
from tilewright.torch.products import complex_matmul, einsum, linear, matmul

__all__ = [
    "attention",
    "col2im",
    "complex_matmul",
    "einsum",
    "gated_matmul",
    "gemm_chain",
    "grouped_matmul",
    "linear",
    "matmul",
    "scaled_mm",
]
