"""Very many jobs, handlers that fail at random, and processes that are killed amid them."""
