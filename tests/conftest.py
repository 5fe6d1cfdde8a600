"""How hypothesis looks for counterexamples: quickly by default, `HYPOTHESIS_PROFILE=thorough` for longer."""

import os

from hypothesis import settings

# Machines are shared: a slow example is no failure.
settings.register_profile("quick", deadline=None)
settings.register_profile("thorough", deadline=None, max_examples=2000)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "quick"))
