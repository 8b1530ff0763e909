"""From a model to compiled modules: plan, tracing, compile server, caches."""
