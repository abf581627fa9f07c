"""Converters: jobs that write the formats Windrow reads.

Each is a function over files that runs in this process, in several, or as a Beam pipeline. It can
be stopped at any moment and resumes when it is called again.

Invariant: a folder under conversion carries a marker until its manifest is complete, and a file
under a final name is complete.

The stub next to this file lists the public names, each imported when it is first used.
"""

from windrow.core.lazy_names import lazy_names

__getattr__, __dir__, __all__ = lazy_names(__name__)
