"""From a plan to the files and arguments that other tools read."""
