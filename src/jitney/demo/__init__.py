"""The demo: real prompts through synchronous static and asynchronous continuous batching, side by side."""
