"""Code that is never run: what the type checker says of it is the test (`make types`)."""
