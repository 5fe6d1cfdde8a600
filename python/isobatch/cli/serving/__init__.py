"""Commands that answer many questions in one process."""
