"""Makes data/gemma_token_ids.json: what transformers makes of varied texts with the real Gemma file's vocabulary.

Not run by the tests: transformers needs one to two minutes to convert this vocabulary. Run it again when the texts or
the file change: PYTHONPATH=tests python tests/cpu/make_gemma_token_ids.py
"""

import json
from pathlib import Path

from real_model import gemma_gguf

TARGET = Path(__file__).parent / "data" / "gemma_token_ids.json"
TEXTS = [
    "",
    " ",
    "a",
    " a",
    "Hello, world!",
    "The capital of France is",
    "The quick brown fox jumps over the lazy dog. " * 4,
    "don't I'll we've THEY'RE it's",
    "1234567890 3.14159 1,000,000 0x1F 2^10 50% 1e-9",
    "UPPER lower CamelCase snake_case kebab-case SCREAMING_SNAKE",
    "two  spaces   three    four     five",
    "leading",
    "   leading spaces",
    "trailing spaces   ",
    "\ttab\t\ttabs",
    "line\nline\n\nparagraph\n\n\n\nend",
    "windows\r\nline\r\nends\r",
    "mixed \n \n  \t whitespace\u00a0nbsp\u2003em",
    "a" * 100,
    "ab" * 70,
    " " * 50,
    "\n" * 40,
    "naïve café façade Übergröße señor ĐURĐEVAK",
    "cafe\u0301 decomposed, 가 decomposed hangul",
    "Привет, как дела? Съешь ещё этих мягких французских булок.",
    "Γειά σου Κόσμε. Ποιος είναι;",
    "你好，世界！今天天气怎么样？繁體中文也可以。",
    "こんにちは世界。カタカナ、ひらがな、漢字。",
    "안녕하세요 세계 여러분",
    "مرحبا بالعالم كيف حالك",
    "שלום עולם",
    "नमस्ते दुनिया कैसे हो",
    "สวัสดีชาวโลก",
    "Xin chào thế giới, tiếng Việt có dấu",
    "😀😃😄 👍🏽 👩‍👩‍👧‍👦 🏳️‍🌈 🇫🇷🇩🇪",
    "𝔘𝔫𝔦𝔠𝔬𝔡𝔢 𝕞𝕒𝕥𝕙 ∑∫√∞≈≠ ℵ₀",
    "rare: 𓀀𓂀 𐍈 ꙮ ᚠᛇᚻ 𒀀 \U0001fae8",
    "control \x00\x01\x1f\x7f chars \u200b zero width \ufeff bom \ufffd",
    "def f(x):\n    if x > 1:\n        return f(x - 1) * x  # factorial\n    return 1\n",
    "for (int i = 0; i < n; ++i) { a[i] += b[i] << 2; } // C",
    '{"key": [1, 2.5, null, true], "nested": {"a": "\\u00e9"}}',
    "<html><body><h1>Title</h1><p class='x'>Text</p><table><tr><td>1</td></tr></table></body></html>",
    "SELECT * FROM users WHERE id = 42 AND name LIKE '%o''neil%';",
    "https://example.com/path?q=1&r=%20#frag user@example.com C:\\dir\\file.txt",
    "| a | b |\n|---|---|\n| 1 | 2 |\n\n- item\n  - nested\n\n```python\nx = 1\n```",
    "<bos>already there",
    "<start_of_turn>user\nHi<end_of_turn>\n<start_of_turn>model\n",
    "<unused5><mask>[multimodal]<eos>",
    "< bos > <bo s> <|im_start|> [INST]",
    "▁already▁escaped ▁",
    "<0x41><0xE4>",
    "I'm 100% sure—absolutely “certain” … ‘maybe’",
    "$x^2 + y_1 = \\frac{a}{b}$ and \\LaTeX{}",
    "antidisestablishmentarianism supercalifragilisticexpialidocious Donaudampfschifffahrtsgesellschaft",
    "ATGCGTACGTTAGC ACGTACGTACGTACGT",
    "dGhpcyBpcyBiYXNlNjQgdGV4dA== 550e8400-e29b-41d4-a716-446655440000",
    "¿Qué? ¡Olé! «guillemets» „Gänsefüßchen“",
    "ﬁ ligature ½ ² ③ Ⅷ ㎏ ｆｕｌｌｗｉｄｔｈ",
    "!!!???...,,,;;;:::---___***###@@@$$$%%%^^^&&&",
    "e\u0301\u0323\u0302 stacked z\u0351\u036b\u0343algo",
]


def main() -> None:
    import transformers

    path = gemma_gguf()
    tokenizer = transformers.AutoTokenizer.from_pretrained(path.parent, gguf_file=path.name)
    document = {
        "note": f"made by make_gemma_token_ids.py with transformers {transformers.__version__} from {path.name}",
        "cases": [{"text": text, "ids": tokenizer.encode(text)} for text in TEXTS],
    }
    TARGET.parent.mkdir(exist_ok=True)
    TARGET.write_text(json.dumps(document, ensure_ascii=True, indent=None).replace('{"text"', '\n{"text"') + "\n")


if __name__ == "__main__":
    main()
