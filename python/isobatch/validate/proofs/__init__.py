"""One claim of the plan a file, and how it is proven."""
