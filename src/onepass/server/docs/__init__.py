"""`/docs` and the OpenAPI document."""
