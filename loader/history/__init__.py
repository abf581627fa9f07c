"""Histories: which records each step of a run was made of, kept in a file by the iterator.

`DatasetIterator.keep_history` writes one; `read` opens it later, without the data.
"""

from windrow.history.reading import History, PartOfStep, SourceOf, Start, StepRecords, read

__all__ = ["History", "PartOfStep", "SourceOf", "Start", "StepRecords", "read"]
