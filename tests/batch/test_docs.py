import re
from pathlib import Path

import jitney.batch

PACKAGE = Path(jitney.batch.__file__).parent
PAGE = Path(__file__).parents[2] / "docs" / "run-batch.md"


def test_the_page_explains_every_error_code() -> None:
    source = "".join(path.read_text(encoding="utf-8") for path in PACKAGE.glob("*.py"))
    codes = re.findall(r'(?:LineError\(|Failure\(\d+, )\s*"(\w+)"', source)
    assert {"invalid_json", "missing_field", "step_failed", "invalid_value"} <= set(codes)
    rows = [line for line in PAGE.read_text(encoding="utf-8").splitlines() if re.match(r"\| `\w+`", line)]
    explained = {code for row in rows for code in re.findall(r"`(\w+)`", row.split("|")[1])}
    assert explained - {"code"} == set(codes)  # "code" heads the table
