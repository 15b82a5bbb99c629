"""The scenarios of the matrix, one module for each part of the way of an event."""
