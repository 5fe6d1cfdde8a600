"""How a training starts: command lines, launchers, and the processes that they count."""
