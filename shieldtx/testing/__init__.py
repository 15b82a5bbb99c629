"""Test support for services: a broker in memory."""
