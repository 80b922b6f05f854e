"""The HTTP server: an OpenAI-compatible API in one process, the engine in another."""
