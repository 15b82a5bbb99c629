"""What a run leaves: listed rows, counts, and daily statistics."""
