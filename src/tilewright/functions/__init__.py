"""The elementwise functions, one row each: operands, meaning, C name and largest error."""
