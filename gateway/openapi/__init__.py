"""The OpenAPI document, `/openapi.json`, made of the types that bodies are decoded into."""
