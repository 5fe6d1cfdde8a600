"""Shell scripts as bash reads them, without running anything."""
