"""What a plan costs: profiles of measurements, step times, the batch that reaches the loss soonest."""
