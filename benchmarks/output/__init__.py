"""The table of figures, their files, and the plots."""
