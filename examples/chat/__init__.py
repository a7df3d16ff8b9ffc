"""A chat for several users, whose answers survive the death of their process."""
