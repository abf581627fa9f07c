"""Windows and patches of arrays as records."""

from windrow.sources.windows.declared import Field, Window
from windrow.sources.windows.source import WindowDataSource

__all__ = ["Field", "Window", "WindowDataSource"]
