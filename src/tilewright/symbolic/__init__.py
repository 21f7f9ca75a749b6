"""Symbolic integers and conditions: canonical expressions with ranges and divisors."""

from tilewright.symbolic import arithmetic, spelling

OPERATORS = arithmetic, spelling
"""What the operators of integers and conditions build with; importing them makes them known to the nodes."""
