"""`windrow.report`: a page about a chain, in one HTML file."""
