"""Checks of results: matrices to try, references in higher precision, comparisons under derived bounds."""
