"""The time and cost of a plan: profiles of measurements, step times, the batch that reaches the loss soonest."""
