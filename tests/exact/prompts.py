"""64 prompts from 1 to 2,000 tokens: English, Japanese, emoji, code."""

from collections.abc import Callable

_TEXTS = [
    "The bus came down the hill at seven, and everybody who wanted to get off got off at the next stop.",
    "Explain in simple words why the sky is blue, and what happens at sunset.",
    "List three reasons to keep a diary, and one reason not to.",
    "What is the difference between latency and throughput? Give an example from a kitchen.",
    "路線バスは停留所ごとに人を降ろし、空いた席にすぐ次の人を乗せます。",
    "日本の四季について、それぞれの特徴を一文ずつ説明してください。",
    "吾輩は猫ではないが、猫のように昼寝をするのが好きである。",
    "GPUの空席を減らすにはどうすればよいですか。箇条書きで答えてください。",
    "🚌💨 The jitney leaves! 👩‍👩‍👧‍👦 waves 🇯🇵🎌 and the 🐈‍⬛ sleeps. 🎉🎊✨",
    "絵文字だけで一日の予定を書いてください: ☀️🍞☕️🚃💻🍱💻🍺🌙",
    "def fibonacci(n):\n    if n < 2:\n        return n\n    return fibonacci(n - 1) + fibonacci(n - 2)\n\nprint(",
    "for (int i = 0; i < n; ++i) {\n    total += values[i] * weights[i];\n}\nreturn total / ",
    "SELECT name, COUNT(*) FROM passengers GROUP BY name HAVING COUNT(*) > 1 ORDER BY",
    '{"stop": "Central", "riders": [{"name": "花子", "seat": 3}, {"name": "Tom", "seat": 4}], "next":',
    "3.14159265358979 2.71828182845904 1.41421356237309 1.61803398874989",
    "Zażółć gęślą jaźń. Falsches Üben von Xylophonmusik quält jeden größeren Zwerg. 中文字符也可以。",
]
_LENGTHS = [1, 2, 3, 5, 8, 13, 16, 17, 21, 31, 32, 33, 48, 63, 64, 65, 90, 127, 128, 129, 200, 255, 256, 257, 300, 400]
_LONG = [512, 640, 777, 1000, 1024, 1500, 1999, 2000]


def exact_prompts(encode: Callable[[str], list[int]]) -> list[list[int]]:
    """64 token lists: every text at several lengths, and eight long ones."""
    texts = [encode(text) for text in _TEXTS]
    lengths = (_LENGTHS * 3)[: 64 - len(_LONG)] + _LONG
    prompts = []
    for index, length in enumerate(lengths):
        tokens: list[int] = []
        while len(tokens) < length:
            tokens += texts[(index + len(tokens)) % len(texts)]
        prompts.append(tokens[:length])
    return prompts
