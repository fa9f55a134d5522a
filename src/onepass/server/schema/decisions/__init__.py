"""Decision dialects: fields, requests and answers."""
