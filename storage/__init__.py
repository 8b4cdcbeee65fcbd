"""Kafka's on-disk format and what is done to it. No sockets, no processes, no clock of its own."""
