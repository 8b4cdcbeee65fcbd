"""The daemon's worker processes (brokers, cleaners, retention, deleter), and what they and the coordinator say to each other."""
