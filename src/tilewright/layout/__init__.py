"""Integers, layouts, views and distributions: everything about where an element lies."""
