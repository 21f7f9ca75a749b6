"""Recording of dataflow kernels: what is computed, in tiles, without a word about how."""
