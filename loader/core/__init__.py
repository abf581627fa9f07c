"""What every room uses: threads, cancellation, child processes, text, progress. It imports only errors."""
