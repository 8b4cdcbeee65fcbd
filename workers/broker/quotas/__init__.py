"""Client quotas: what is measured, and how long a client is held back for it."""
