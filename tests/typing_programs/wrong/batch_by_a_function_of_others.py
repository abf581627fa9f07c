"""The function gets a list of numbers."""

from windrow import MapDataset

NUMBERS = MapDataset.range(10)


def joined(texts: list[str]) -> str:
    return " ".join(texts)


NUMBERS.batch(4, batch_fn=joined)  # error: arg-type, reportCallIssue
