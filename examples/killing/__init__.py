"""What the examples share: workers that are killed, and what is seen of that from outside."""
