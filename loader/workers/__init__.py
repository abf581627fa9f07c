"""Worker processes: the pool, the program of a worker, messages and shared memory."""
