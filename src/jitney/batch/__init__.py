"""OpenAI batch files: one request a line in, one answer a line out."""
