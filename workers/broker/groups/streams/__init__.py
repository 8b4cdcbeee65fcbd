"""Streams groups (KIP-1071): members that run tasks of one topology, and the topics that belong to it."""
