"""Time and cost of a plan: profiles, step times, and the batch that reaches the loss soonest."""
