"""Recording of dataflow kernels: the computation in tiles, independent of a schedule."""
