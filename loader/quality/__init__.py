"""`shuffle_quality` measures how well an order mixes the records."""
