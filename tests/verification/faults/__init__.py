"""The fault matrix: counts violations of the promise while processes, networks and disks fail."""
