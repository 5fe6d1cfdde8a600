"""From a wrong figure to its cause: shared by the validator and the guard."""
