"""What was tuned, and the hardware that it runs on."""
