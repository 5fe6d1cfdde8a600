"""The files of other tools: what they say, and what a plan makes of them."""
