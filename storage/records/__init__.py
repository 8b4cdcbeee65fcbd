"""Record batches of every magic, as Python objects: for reading, dumping and the reference kernel."""
