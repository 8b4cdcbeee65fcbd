"""What a person runs: the subcommands of compactd."""
