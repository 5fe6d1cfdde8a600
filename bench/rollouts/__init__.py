"""Loss functions of reinforcement-learning trainers, as their workers call them, at splits of one rollout."""
