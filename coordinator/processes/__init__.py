"""The worker processes: started, heard of and stopped; what they say and are asked."""
