"""Targets: tables of rules that emit or execute each operation, and records of machines."""
