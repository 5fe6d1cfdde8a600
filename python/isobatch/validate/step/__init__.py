"""The training step that is validated: a workload under DDP."""
