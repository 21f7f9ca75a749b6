"""Layouts: nested shapes and strides, their algebra, and the sizes that they may have."""
