"""Kernels as operations of PyTorch, with gradients and `torch.compile`: ``import tilewright.torch``."""

from tilewright.torch.attending import attention
from tilewright.torch.contractions import col2im, complex_matmul, einsum, im2col
from tilewright.torch.kernels import KernelOperation, LayerNorm, RMSNorm, layer_norm, op, rms_norm
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
    "LayerNorm",
    "Linear",
    "QuantizedLinear",
    "RMSNorm",
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
    "layer_norm",
    "linear",
    "matmul",
    "op",
    "reduced_matmul",
    "rms_norm",
    "scaled_mm",
]
