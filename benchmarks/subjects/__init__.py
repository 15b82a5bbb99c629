"""What is measured, one process each; those of the peers run in an environment of their own."""
