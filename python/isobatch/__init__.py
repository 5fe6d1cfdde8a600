"""isobatch: tune once, train the same at any GPU count."""
