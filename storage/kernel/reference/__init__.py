"""The plain-Python kernel: the executable specification of both passes."""
