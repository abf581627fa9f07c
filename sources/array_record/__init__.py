"""ArrayRecord files as a source."""

from windrow.sources.array_record.source import ArrayRecordDataSource

__all__ = ["ArrayRecordDataSource"]
