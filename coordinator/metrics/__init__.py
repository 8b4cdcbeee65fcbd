"""/metrics and /healthz: which metrics there are, what each comes to, and the little server that shows them."""
