"""Schedules, and their expansion of dataflow kernels to explicit kernels."""

from tilewright.schedule import resources as resources  # its tables declare the values of fields
