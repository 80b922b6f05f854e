"""Prints a request's text as it comes, and says on stderr how fast it came. Shared by `generate` and `chat`."""

import sys
from collections.abc import AsyncGenerator
from contextlib import aclosing

from jitney.outputs import RequestOutput


class TextPrinter:
    """Writes the growing text of one output to stdout. `text` is what has been written."""

    def __init__(self) -> None:
        self.text = ""

    def show(self, text: str) -> None:
        """`text` is everything so far; only what is new is written."""
        write_text(text[len(self.text) :])
        self.text = text

    def end(self) -> None:
        """Finish the line, so that what follows starts on its own."""
        if self.text and not self.text.endswith("\n"):
            write_text("\n")


async def print_stream(outputs: AsyncGenerator[RequestOutput, None], printer: TextPrinter) -> RequestOutput:
    """Print the first output of a request as it grows, and return the finished request.

    Raises the request's error. Leaving early (Ctrl-C) aborts the request.
    """
    last = None
    async with aclosing(outputs):
        async for last in outputs:
            if last.error is not None:
                raise last.error
            printer.show(last.outputs[0].text)
    assert last is not None
    return last


def write_text(text: str) -> None:
    """To stdout, at once. Characters that the terminal's encoding does not have become `?`."""
    encoding = sys.stdout.encoding or "utf-8"
    sys.stdout.write(text.encode(encoding, errors="replace").decode(encoding))
    sys.stdout.flush()


def stats_line(output: RequestOutput) -> str:
    """How much and how fast: tokens, tokens/s over the whole request, time to the first token."""
    metrics = output.metrics
    num_tokens = sum(len(choice.token_ids) for choice in output.outputs)
    parts = [f"{len(output.prompt_token_ids)} prompt tokens", f"{num_tokens} tokens"]
    if metrics.finished_time is not None and metrics.finished_time > metrics.arrival_time:
        seconds = metrics.finished_time - metrics.arrival_time
        parts[-1] += f" in {seconds:.2f} s ({num_tokens / seconds:.1f} tokens/s)"
    if metrics.first_token_time is not None:
        parts.append(f"first token after {1000 * (metrics.first_token_time - metrics.arrival_time):.0f} ms")
    reasons = {choice.finish_reason for choice in output.outputs}
    parts.append("ended by " + ", ".join(sorted(str(reason) for reason in reasons)))
    return "; ".join(parts)
