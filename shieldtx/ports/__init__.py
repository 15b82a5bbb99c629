"""What the services need from outside: a module for each, with its protocols and values."""
