"""Histories whose reconciliation is known beforehand: what each night must report, and no more."""
