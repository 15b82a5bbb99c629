"""The fault matrix: what shieldtx promises, counted while processes, networks and disks fail."""
