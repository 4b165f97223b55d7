"""What holds for every test."""

import os

import hypothesis

# No deadline: the first example of a test pays for what is loaded and compiled on first use.
# Triton's interpreter takes a hundred times as long for each.
examples = 20 if os.environ.get("TRITON_INTERPRET") == "1" else 100
hypothesis.settings.register_profile("mxfp4-ops", deadline=None, max_examples=examples)
hypothesis.settings.load_profile("mxfp4-ops")

# One more backend, for all tests of backends. It is slow, so that they run on it by request only.
if os.environ.get("MXFP4_TEST_GFX950"):
    from gfx950.backend import Emulated

    from mxfp4_ops.backends import REGISTRY

    REGISTRY[Emulated.name] = Emulated()
