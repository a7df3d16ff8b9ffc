"""One module a topic: `measure(bench)` gives its lines."""
