"""Layouts: nested shapes and strides, their algebra, and limits on their sizes."""
