"""The measured subjects, one process each; peers run in a separate environment."""
