#!/usr/bin/env python3
"""Strided perplexity of a text by transformers in f32, as its documentation describes it.

  perplexity.py OUT_JSON [--check]     scores the text below with the fixtures
  perplexity.py --model DIR --file TEXT [--window N] [--stride N] [--device cuda]    prints one result

A window is <bos> and up to N tokens; labels of tokens that an earlier window scored are -100. What looks like a
control token in the text is split into ordinary tokens, as `gemma perplexity` does.
"""
import argparse, json, math, sys
from pathlib import Path
import torch, transformers
from tokenizers import Tokenizer

TEXT = ("The brevity of the notice is deliberate: it is granted, free of charge, to any person.\n\n"
        "Élan vital, naïve café, 東京 日本語 - 1234567890.\n    <bos> is text here, as is <|turn>.\n") * 4
CASES = [("tiny-e2b", 32, 16), ("tiny-e2b", 32, 32), ("tiny-e2b", 100, 7), ("tiny-e4b", 64, 32), ("tiny-31b", 48, 5),
         ("tiny-31b", 4096, 2048)]
NOISE = 1e-5


def encode(tok, text):
    """Ids of the text without control tokens: those are cut at their first character."""
    special = [t.content for t in tok.get_added_tokens_decoder().values()]
    assert all(t.startswith("<") for t in special)
    plain = json.loads(tok.to_str())
    plain["added_tokens"], plain["post_processor"] = [], None
    return Tokenizer.from_str(json.dumps(plain)).encode(text, add_special_tokens=False).ids


@torch.no_grad()
def score(model, ids, window, stride):
    total, count, scored = 0.0, 0, 0
    for begin in range(0, len(ids), stride):
        end = min(begin + window, len(ids))
        inputs = torch.tensor([[2] + ids[begin:end]], device=model.device)
        labels = inputs.clone()
        labels[:, : 1 + scored - begin] = -100
        mean = model(input_ids=inputs, labels=labels, use_cache=False).loss
        fresh = end - scored
        total, count, scored = total + float(mean) * fresh, count + fresh, end
        if end == len(ids):
            break
    return dict(window=window, stride=stride, tokens=count, nll=total / count, perplexity=math.exp(total / count))


def load(folder, device="cpu"):
    model, info = transformers.Gemma4ForConditionalGeneration.from_pretrained(
        folder, dtype=torch.float32, attn_implementation="eager", output_loading_info=True)
    assert not info["missing_keys"] and not info["unexpected_keys"] and not info["mismatched_keys"], info
    return model.to(device).eval(), Tokenizer.from_file(str(folder / "tokenizer.json"))


def main():
    a = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    a.add_argument("out", type=Path, nargs="?"), a.add_argument("--check", action="store_true")
    a.add_argument("--model", type=Path), a.add_argument("--file", type=Path)
    a.add_argument("--window", type=int, default=2048), a.add_argument("--stride", type=int)
    a.add_argument("--device", default="cpu")
    a = a.parse_args()
    if a.model:
        model, tok = load(a.model, a.device)
        ids = encode(tok, a.file.read_text())
        print(json.dumps(score(model, ids, a.window, a.stride or (a.window + 1) // 2)))
        return
    fixtures = Path(__file__).parents[2] / "tests/fixtures"
    made = dict(text=TEXT, cases=[
        dict(model=name, **score(model, encode(tok, TEXT), window, stride))
        for name, window, stride in CASES for model, tok in [load(fixtures / name)]])
    if not a.check:
        a.out.write_text(json.dumps(made, indent=1, ensure_ascii=False) + "\n")
        return
    stored = json.loads(a.out.read_text())
    same = stored["text"] == TEXT and len(stored["cases"]) == len(made["cases"]) and all(
        {k: v for k, v in s.items() if k not in ("nll", "perplexity")}
        == {k: v for k, v in m.items() if k not in ("nll", "perplexity")} and abs(s["nll"] - m["nll"]) < NOISE * m["nll"]
        for s, m in zip(stored["cases"], made["cases"]))
    sys.exit(0 if same else f"{a.out} is not what this script makes")


if __name__ == "__main__":
    main()
