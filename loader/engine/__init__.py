"""From positions to batches: execution, read batches, prefetching, the chunk cache, executors."""
