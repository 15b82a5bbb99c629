"""What is proven, and by what: see README.md."""
