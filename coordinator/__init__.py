"""The main process of the daemon (issue 5)."""
