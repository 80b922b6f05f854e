"""How byte-level vocabularies of GGUF files cut text before merging: `tokenizer.ggml.pre` -> regular expressions.

The names and groups are llama.cpp's (`llama-vocab.cpp`). Where llama.cpp had to rewrite a pattern for its own regex
engine, the original of the model's tokenizer.json stands here. Several patterns apply one after the other, each to
the pieces the one before left.
"""

_CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_BLANKS = r"\s*[\r\n]+|\s+(?!\S)|\s+"

_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_LLAMA3 = rf"{_CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}{{1,3}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|{_BLANKS}"
_QWEN2 = rf"{_CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|{_BLANKS}"
_QWEN35 = (
    rf"{_CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?[\p{{L}}\p{{M}}]+|\p{{N}}"
    rf"| ?[^\s\p{{L}}\p{{M}}\p{{N}}]+[\r\n]*|{_BLANKS}"
)
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_WORD_START = r"[^\r\n\p{L}\p{N}]?"
_TEKKEN = (
    rf"{_WORD_START}{_UPPER}*{_LOWER}+|{_WORD_START}{_UPPER}+{_LOWER}*"
    rf"|\p{{N}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|{_BLANKS}"
)
_GPT4O = (
    rf"{_WORD_START}{_UPPER}*{_LOWER}+{_CONTRACTIONS}?|{_WORD_START}{_UPPER}+{_LOWER}*{_CONTRACTIONS}?"
    rf"|\p{{N}}{{1,3}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|{_BLANKS}"
)
_DEEPSEEK3 = (
    r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"""
    rf"| ?[\p{{P}}\p{{S}}]+[\r\n]*|{_BLANKS}"
)
_SEED_CODER = rf"{_CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}| ?[^\s\p{{L}}\p{{N}}\r\n]+|{_BLANKS}"
_BAILING = r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+"

_GROUPS: tuple[tuple[tuple[str, ...], tuple[str, ...]], ...] = (
    (("default",), (r"[\p{P}\$\+<=>\^~\|]+", _GPT2, r"\p{N}+", r"[0-9][0-9][0-9]")),
    (
        ("gpt-2", "phi-2", "gigachat", "a.x-4.0", "mellum", "mpt", "olmo", "jais", "trillion", "exaone4"),
        (_GPT2,),
    ),
    (("granite-docling",), (_GPT2,)),
    (
        ("smollm", "starcoder", "refact", "command-r", "codeshell", "exaone", "minerva-7b", "mellum2"),
        (r"\p{N}", _GPT2),
    ),
    (("falcon",), (r"[\p{P}\$\+<=>\^~\|`]+", _GPT2, r"[0-9][0-9][0-9]")),
    (("llama3", "llama-v3", "llama-bpe", "falcon3", "falcon-h1", "pixtral", "midm-2.0", "lfm2"), (_LLAMA3,)),
    (("dbrx", "smaug-bpe", "glm4", "chatglm-bpe"), (_LLAMA3,)),
    (
        ("qwen2", "deepseek-r1-qwen", "kormo", "megrez", "stablelm2", "hunyuan", "solar-open", "grok-2"),
        (_QWEN2,),
    ),
    (("qwen35",), (_QWEN35,)),
    (("tekken",), (_TEKKEN,)),
    (("gpt-4o", "llama4", "kanana2", "talkie", "minimax-m2"), (_GPT4O,)),
    (("deepseek-v3", "hunyuan-dense", "joyai-llm"), (r"\p{N}{1,3}", "[一-龥぀-ゟ゠-ヿ]+", _DEEPSEEK3)),
    (("deepseek-coder",), (r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", "[一-龥ࠀ-一가-퟿]+", r"\p{N}")),
    (("seed-coder",), (_SEED_CODER,)),
    (("bailingmoe", "bailingmoe2", "llada-moe"), (_BAILING,)),
    (("poro-chat", "bloom", "gpt3-finnish"), (r" ?[^(\s|.,!?…。，、।۔،)]+",)),
    (("viking",), (r" ?[^(\s|.,!?…。，、।۔،)]+", r"\p{N}")),
)

SPLIT_PATTERNS = {name: patterns for names, patterns in _GROUPS for name in names}
"""`tokenizer.ggml.pre` -> patterns; each cuts out its matches and leaves what lies between as pieces too."""

IGNORES_MERGES = frozenset(
    ("llama3", "llama-v3", "llama-bpe", "falcon3", "falcon-h1", "pixtral", "midm-2.0", "lfm2", "tekken")
)
"""A piece that is a token as a whole is taken as it is, whether or not merges lead to it."""

ADDS_BOS = IGNORES_MERGES
"""Begins texts with the begin-of-text token where the file does not say (`tokenizer.ggml.add_bos_token`)."""
