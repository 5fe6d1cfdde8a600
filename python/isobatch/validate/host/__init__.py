"""A host before a large job: its GPUs and its kernel's log."""
