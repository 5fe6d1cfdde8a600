"""The arguments of other libraries' schedules: torch, transformers, optax, timm, Megatron and Composer."""
