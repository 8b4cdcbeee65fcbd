"""The cleaning side of the coordinator: what is cleaned next, by whom, what came of it, and what a person asks of it."""
