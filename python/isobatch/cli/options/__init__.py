"""Options that several commands have, and how their texts are read."""
