"""Targets: rule tables that give each operation its text or its meaning, and what each machine offers."""
