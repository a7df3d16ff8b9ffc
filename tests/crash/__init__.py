"""Crash safety: processes that die, freeze, are cancelled or lose their database, on every store.

Workers are real processes. They come from one warm process (`nursery`), so that a test can afford
hundreds of them.
"""
