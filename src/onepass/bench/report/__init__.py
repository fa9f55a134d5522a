"""Results as tables, pages and comparisons."""
