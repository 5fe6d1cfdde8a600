"""Slow, obvious versions of the core's formulas."""
