"""What commands such as `compactd status` ask of the running daemon, and what it answers."""
