"""Consumer groups of the newer protocol (KIP-848): members, target assignments, and how each member gets to its own."""
