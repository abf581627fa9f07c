"""Windows and patches of arrays as records."""

from windrow.sources.windows.fields import Field
from windrow.sources.windows.source import WindowDataSource

__all__ = ["Field", "WindowDataSource"]
