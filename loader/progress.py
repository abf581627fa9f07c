"""Progress of long jobs, under its public name: see `windrow.core.progress`."""

from windrow.core.progress import Progress

__all__ = ["Progress"]
