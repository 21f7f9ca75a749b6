"""What a dataflow kernel computes: a graph of values over runs of dimensions, and what it means in NumPy."""
