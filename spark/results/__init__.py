"""The results of a run: listed rows, counts, and daily statistics."""
