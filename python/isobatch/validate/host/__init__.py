"""What a host says about itself, asked before a large job: its GPUs, its network ports, its kernel's log, its limits."""
