"""Writes golden.json and tokens.json from the original implementation, and compares a program's output with it.

Neither the library nor its build needs this: it wants PyTorch. In an environment of its own:

    pip install sentence-transformers
    HF_HUB_OFFLINE=1 python examples/minilm/goldens.py .deps/models/all-MiniLM-L6-v2           # compare
    HF_HUB_OFFLINE=1 python examples/minilm/goldens.py .deps/models/all-MiniLM-L6-v2 --write   # write
"""

import json
import pathlib
import sys

import sentence_transformers
import tokenizers
import torch

HERE = pathlib.Path(__file__).parent
MAX_TOKENS = 256

# What a tokeniser can get wrong; the texts of the demo come on top.
TEXTS = [
    "",
    " \t\n ",
    "Hello, world!",
    "HELLO WORLD",
    "it's a dog's life; isn't it?",
    "e-mail me at someone@example.com (or don't)...",
    "3.14159 is about 22/7, and 1,000,000 is 10^6",
    "naïve café, crème brûlée, piñata, Zürich, Ærøskøbing, Łódź, Straße",
    "décomposé: e\u0301a\u0300u\u0302n\u0303",
    "Việt Nam, Đà Nẵng, Phở bò",
    "ΑΘΗΝΑ, Ἀθήναι, Σίσυφος",
    "Привет, мир! Ёлка и йод",
    "北京 and 東京 are 都市s",
    "ひらがな カタカナ ガギグ",
    "한국어 문장",
    "السلام عليكم، أهلاً",
    "שָׁלוֹם עולם",
    "नमस्ते दुनिया",
    "สวัสดี",
    "good 👍 bad 👎 family 👨‍👩‍👧",
    "“quotes” – dashes — and…ellipsis «guillemets» ¿qué?",
    "$100 £100 €100 ¥100 50% ±2 ×3 ÷4",
    "soft\u00adhyphen zero\u200bwidth no\u00a0break \ufeffbom nul\u0000byte bell\u0007 \ufffd",
    "line\none\r\ntwo\ttabbed\u000bvertical\u0085next",
    "antidisestablishmentarianism pneumonoultramicroscopicsilicovolcanoconiosis",
    "qzxjkvw zzzzqqq xylophonezzz",
    "a" * 100,
    "a" * 101,
    "x" * 5000 + " tail",
    "[CLS] is text here, and so is [SEP] or [UNK]",
    "##ing ## # #hash",
    "http://www.example.org/a_b-c?d=e&f=%20#g",
    "ＦＵＬＬ　ｗｉｄｔｈ Ⅷ ⓐⒷ ﬁne ½ ² \u212a \u212b \u2126",
    "if (x != y && !z) { return a[i]->b; } // comment\\",
    "word " * 300,
    "unbelievably " * 120,
]


def demo_texts():
    lines = (HERE / "sentences.txt").read_text(encoding="utf-8").splitlines()
    return [line.removeprefix("? ") for line in lines if line and not line.startswith("#")]


def tokens_of(model, texts):
    tokenizer = tokenizers.Tokenizer.from_file(str(model / "tokenizer.json"))
    tokenizer.no_padding()
    tokenizer.enable_truncation(MAX_TOKENS)
    tokenizer.encode_special_tokens = True  # "[SEP]" in a text is text
    encodings = [tokenizer.encode(text) for text in texts]
    return [{"text": t, "ids": e.ids, "pieces": e.tokens} for t, e in zip(texts, encodings)]


def embeddings_of(model, texts):
    """In double, so that what is written down is the model and not one machine's rounding."""
    network = sentence_transformers.SentenceTransformer(str(model), device="cpu").double().eval()
    assert network.max_seq_length == MAX_TOKENS
    return network.encode(texts, convert_to_tensor=True, normalize_embeddings=True)


def rows(items):
    return "[\n" + ",\n".join(json.dumps(item, ensure_ascii=True) for item in items) + "\n]\n"


def write(model):
    texts = demo_texts()
    embeddings = [[round(x, 6) for x in row] for row in embeddings_of(model, texts).tolist()]
    golden = [{"text": text, "embedding": row} for text, row in zip(texts, embeddings)]
    (HERE / "golden.json").write_text(rows(golden))
    (HERE / "tokens.json").write_text(rows(tokens_of(model, TEXTS + texts)))


def compare(model):
    texts = demo_texts()
    expected = embeddings_of(model, texts)
    golden = json.loads((HERE / "golden.json").read_text())
    assert [g["text"] for g in golden] == texts, "golden.json is of other sentences: run with --write"
    assert json.loads((HERE / "tokens.json").read_text()) == tokens_of(model, TEXTS + texts), "tokens.json is stale"
    given = torch.tensor([g["embedding"] for g in golden], dtype=torch.float64)
    print(f"golden.json: largest difference {(given - expected).abs().max():.1e}; tokens.json agrees")


if __name__ == "__main__":
    (write if "--write" in sys.argv else compare)(pathlib.Path(sys.argv[1]))
