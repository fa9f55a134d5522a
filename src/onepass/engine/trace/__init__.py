"""Recording of `return_trace`: what each step did for a request."""
