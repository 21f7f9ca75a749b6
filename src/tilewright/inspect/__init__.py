"""Looking into kernels: what the compiler reported, how each copy moves, pictures of layouts."""
