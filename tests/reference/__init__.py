"""Slow, obvious versions of what the core computes."""
