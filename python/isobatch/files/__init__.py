"""Tables and texts in files: read, and written whole or not at all."""
