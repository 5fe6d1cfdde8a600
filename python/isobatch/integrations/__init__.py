"""Where a plan meets a framework: each module imports its own, and nothing here imports one before it is used."""
