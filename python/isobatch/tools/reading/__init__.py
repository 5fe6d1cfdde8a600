"""From another tool's configuration to the fields of a recipe. A configuration is data: nothing in it is imported or run."""
