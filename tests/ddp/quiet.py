"""Trainers of other libraries that print, save and fetch nothing."""

import os
import sys

LIGHTNING = {"accelerator": "cpu", "logger": False, "enable_checkpointing": False}
LIGHTNING |= {"enable_progress_bar": False, "enable_model_summary": False}
"""Arguments of Lightning's Trainer."""


def stay_offline():
    """Lets transformers and accelerate train on the CPU, with what is here."""
    os.environ.update(HF_HUB_OFFLINE="1", TRANSFORMERS_OFFLINE="1", ACCELERATE_USE_CPU="true")
    sys.modules.setdefault("deepspeed", None)  # accelerate would import it, which takes long, or fails
