"""Process bodies of the daemon (issue 5)."""
