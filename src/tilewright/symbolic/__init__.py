"""Symbolic integers and conditions: canonical expressions with ranges and divisors."""
