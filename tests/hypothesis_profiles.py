"""Settings of hypothesis: the same examples in each run of the tests, new ones in a hunt.

Without a deadline and without the check for slow draws: two workers share two cores, and the time
that an example takes says nothing about the code. Without a database: what an earlier run found is
pinned with `@example`, so that every checkout tries the same.
"""

from __future__ import annotations

import hypothesis

USUAL, HUNT = "windrow", "hunt"

# What `examples` counts in, and what a test without a number of its own gets in a usual run and in
# a hunt. A usual run looks for what a change broke, and has 6 minutes; a hunt looks further.
_FULL = 100

hypothesis.settings.register_profile(
    USUAL,
    deadline=None,
    max_examples=_FULL // 2,
    print_blob=True,
    derandomize=True,
    database=None,
    suppress_health_check=[hypothesis.HealthCheck.too_slow],
)
# Chosen with --hypothesis-profile by tools/hunt.py, with a seed.
hypothesis.settings.register_profile(
    HUNT, parent=hypothesis.settings.get_profile(USUAL), derandomize=False, max_examples=3 * _FULL
)


def examples(full: int) -> int:
    """The examples of a test that sets a number: half of `full`, and three times it in a hunt."""
    current = hypothesis.settings.default
    assert current is not None
    return max(1, full * current.max_examples // _FULL)
