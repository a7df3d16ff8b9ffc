"""The stores: one module a database."""
