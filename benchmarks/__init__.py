"""What graphkeep costs, beside what else there is: `make bench`."""
