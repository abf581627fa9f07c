"""`windrow.inspect`: what lies at a path, as facts and as pictures."""
