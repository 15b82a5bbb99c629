"""The figures that are measured, with their targets."""
