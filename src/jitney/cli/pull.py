"""`jitney pull`: fetch the embedded model, so that later runs need no network."""

import argparse
import sys

from jitney.models.embedded import EMBEDDED_MODEL, cache_dir, embedded_model_path, find_model

HELP = "Fetch the embedded default model once, for use without a network."


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = f"{HELP} Prints the path of the model file. JITNEY_CACHE chooses another cache folder."


def run(args: argparse.Namespace) -> int:
    present = find_model(EMBEDDED_MODEL, cache_dir()) is not None
    path = embedded_model_path()
    print("already here:" if present else "fetched:", file=sys.stderr)
    print(path)
    return 0
