"""The ports of the services: one module for each, with its protocols and values."""
