"""HTTP below the dialects: connections, bodies, middleware, errors, keys, tracing."""
