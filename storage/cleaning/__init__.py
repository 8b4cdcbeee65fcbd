"""One round of cleaning: what is cleanable, grouping, transactions, the round and its swap."""
