"""Settings, units and errors: what every other floor may import."""
