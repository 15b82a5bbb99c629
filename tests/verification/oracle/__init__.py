"""Histories with a known reconciliation: exactly what each night must report."""
