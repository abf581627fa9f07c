"""Histories: which records each step of a run was made of, kept in a file by the iterator.

`DatasetIterator.keep_history` writes one; `read` opens it later, without the data.
"""

from windrow.history.reading import History, Part, SourceOf, Start, Step, read

__all__ = ["History", "Part", "SourceOf", "Start", "Step", "read"]
