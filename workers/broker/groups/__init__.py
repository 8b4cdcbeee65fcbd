"""The coordinator of consumer groups: who is in a group, what it has committed, and the log that remembers both."""
