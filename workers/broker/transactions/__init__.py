"""The transaction coordinator: the state of each transactional id, and the log that remembers it."""
