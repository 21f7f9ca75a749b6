"""Maps of threads: which thread holds what of a tile, in which register, and what its accesses cost."""
