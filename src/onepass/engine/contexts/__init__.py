"""Kept contexts: pages of keys and values, and who may use them."""
