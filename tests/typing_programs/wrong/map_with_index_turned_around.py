"""The index comes first."""

from windrow import MapDataset


def numbered(text: str, index: int) -> str:
    return f"{index} {text}"


MapDataset.source(["a", "b"]).map_with_index(numbered)  # error: arg-type, reportArgumentType
