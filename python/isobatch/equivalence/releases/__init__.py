"""The same training against another release of a library."""
