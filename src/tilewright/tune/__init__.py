"""Measuring kernels: interleaved timing with intervals, and the record of the machine it was done on."""
