"""What holds for every test."""

import hypothesis

# No deadline: the first example of a test pays for what is loaded and compiled on first use.
hypothesis.settings.register_profile("mxfp4-ops", deadline=None)
hypothesis.settings.load_profile("mxfp4-ops")
