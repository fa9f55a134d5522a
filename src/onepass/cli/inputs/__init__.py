"""Requests, rows and documents from the command line and files."""
