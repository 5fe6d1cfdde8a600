"""The same training after a kill and a restart."""
