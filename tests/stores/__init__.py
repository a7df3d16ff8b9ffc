"""What is special to each database; what every store does is in `graphkeep.testing`."""
