"""Symbolic integers and conditions: canonical expressions with ranges and divisors."""

from tilewright.symbolic import arithmetic, spelling

OPERATORS = arithmetic, spelling
"""Modules with the constructors that operators use; importing them registers the constructors."""
