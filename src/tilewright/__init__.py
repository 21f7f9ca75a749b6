"""Write GEMM-family kernels out of tiles; run one source on NVIDIA GPUs, AMD GPUs and CPUs."""
