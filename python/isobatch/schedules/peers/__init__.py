"""The arguments of other libraries' schedules: torch, transformers, optax, timm and Megatron."""
