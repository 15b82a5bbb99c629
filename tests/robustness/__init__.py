"""Bad input of every kind: records, settings, names, addresses, command lines."""
