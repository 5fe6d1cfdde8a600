"""A host before a large job: its GPUs, its network ports, its kernel's log, its limits."""
