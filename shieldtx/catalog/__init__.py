"""The events that a service sends and receives, as documents for people and programs."""
