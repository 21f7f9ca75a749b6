"""Loops that carry a state: the form of such flows, their schedules, and their explicit kernels."""
