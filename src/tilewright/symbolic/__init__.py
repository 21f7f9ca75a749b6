"""Symbolic integers and conditions: canonical expressions with ranges and divisors."""

from tilewright.symbolic import expr, spelling

OPERATORS = expr, spelling
"""Modules with the constructors that operators use; importing them registers the constructors."""
