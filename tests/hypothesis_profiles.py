"""Settings of hypothesis: the same examples in each run of the tests, new ones in a hunt.

Without a deadline and without the check for slow draws: two workers share two cores, and the time
that an example takes says nothing about the code. Without a database: what an earlier run found is
pinned with `@example`, so that every checkout tries the same.
"""

from __future__ import annotations

import hypothesis

USUAL, HUNT = "windrow", "hunt"

hypothesis.settings.register_profile(
    USUAL,
    deadline=None,
    print_blob=True,
    derandomize=True,
    database=None,
    suppress_health_check=[hypothesis.HealthCheck.too_slow],
)
# Chosen with --hypothesis-profile by tools/hunt.py, with a seed.
hypothesis.settings.register_profile(
    HUNT, parent=hypothesis.settings.get_profile(USUAL), derandomize=False, max_examples=300
)


def examples(usual: int) -> int:
    """The number of examples of a test that sets its own: `usual`, and three times that in a hunt."""
    profile, current = hypothesis.settings.get_profile(USUAL), hypothesis.settings.default
    assert current is not None
    return usual * current.max_examples // profile.max_examples
