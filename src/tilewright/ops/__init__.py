"""Operations of the GEMM family: one main loop, its configurations, and the functions that users call."""
