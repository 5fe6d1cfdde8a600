"""The tuned recipe, and its hardware."""
