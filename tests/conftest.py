"""Settings of all tests."""

from __future__ import annotations

import hypothesis

# No deadline: two workers share two cores, and an example's time says nothing about the code.
hypothesis.settings.register_profile("windrow", deadline=None, print_blob=True)
hypothesis.settings.load_profile("windrow")
