"""Record formats: RecordBatch (magic 2), message sets (magic 0 and 1), control records, codecs, varints and CRCs.

Reading and building in plain Python; the native kernel has its own reader of the same bytes.
"""
