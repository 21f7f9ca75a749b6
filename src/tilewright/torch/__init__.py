"""Kernels as operations of PyTorch, with gradients and `torch.compile`: ``import tilewright.torch``."""

from tilewright.torch.attending import attention
from tilewright.torch.contractions import col2im, complex_matmul, einsum, im2col
from tilewright.torch.kernels import KernelOperation, op
from tilewright.torch.layers import (
    gated_matmul,
    gemm_chain,
    grouped_matmul,
    reduced_matmul,
    scaled_mm,
)
from tilewright.torch.modules import (
    Attention,
    Conv1D,
    GatedLinear,
    Linear,
    QuantizedLinear,
    Replacements,
    convert,
)
from tilewright.torch.packaging import export_operations
from tilewright.torch.products import inductor_options, linear, matmul

__all__ = [
    "Attention",
    "Conv1D",
    "GatedLinear",
    "KernelOperation",
    "Linear",
    "QuantizedLinear",
    "Replacements",
    "attention",
    "col2im",
    "complex_matmul",
    "convert",
    "einsum",
    "export_operations",
    "gated_matmul",
    "gemm_chain",
    "grouped_matmul",
    "im2col",
    "inductor_options",
    "linear",
    "matmul",
    "op",
    "reduced_matmul",
    "scaled_mm",
]
