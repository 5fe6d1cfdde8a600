"""The result of a validation: its figures, verdicts, JSON form and table."""
