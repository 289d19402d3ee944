#!/usr/bin/env python3
"""Run a Gemma 4 checkpoint folder through transformers (text only, eager attention, f32) and store what it computes.

  dump.py MODEL_DIR OUT_DIR [--dtype f32|bf16] [--device cpu|cuda] [--new-tokens 32] [--logit-rows 64]
          [--prompts NAME...] [--taps NAME[:KIND,KIND...]...] [--lora DIR] [--check]

OUT_DIR/reference.json         per prompt: token ids, top-5 of the last position, greedy tokens (with cache) and the
                               top-1/top-2 margin of each step; plus self-checks of the reference
OUT_DIR/reference.safetensors  all f32, per prompt NAME and layer i:
  NAME.logits [rows, vocab]    rows are the positions in NAME.logit_positions (all of them if the vocabulary is small)
  NAME.greedy_logits [n, V]    the logits that chose each greedy token
  NAME.embeds [T, H]           scaled input embeddings
  NAME.ple [T, L, P]           per-layer inputs as the layers receive them (absent without them)
  NAME.hidden.i [T, H]         output of layer i, after layer_scalar (not transformers' hidden_states[-1], which is
                               already through the final norm)
  NAME.attn.i / NAME.mlp.i     outputs of o_proj / down_proj, before their post-norms
  NAME.final [T, H]            after the final norm

--prompts keeps only these prompts; --taps keeps the tensors other than logits for these prompts only, and of those
only the kinds given. --lora has PEFT add an adapter to the model. --check stores nothing: it fails if the stored dump differs by more than f32 noise.
"""
import argparse, json, random, sys
from pathlib import Path
import torch, transformers
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer

TEXTS = {
    "hello": "Hello, world!",
    "spaces": "def f(x):\n    return  x + 1   # caf\u00e9 \u6771\u4eac \U0001f642\n\n\n",
    "chat": "<|turn>user\nThe quick brown fox?<turn|>\n<|turn>model\n",
}
ALL_LOGITS_UP_TO = 32768  # vocabulary size
NOISE = 2e-5  # of a tensor's maximum


def prompts(tok, window):
    """name -> ids. Lengths around and beyond the sliding window; random ids avoid special and media tokens."""
    out = {name: tok.encode(text).ids for name, text in TEXTS.items()}
    usable = sorted(i for t, i in tok.get_vocab().items() if i > 106 and not t.startswith("<"))
    rng = random.Random(1234)
    for name, n in (("one", 1), ("window", window), ("window_plus_1", window + 1), ("three_windows", 3 * window + 5)):
        out[name] = [2] + [rng.choice(usable) for _ in range(n - 1)]
    return out


class Taps:
    """Forward hooks that keep what each layer produced, without the batch dimension."""

    def __init__(self, lm):
        self.got = {}
        lm.layers[0].register_forward_pre_hook(
            lambda _, args, kw: self.keep("embeds", args[0] if args else kw["hidden_states"]), with_kwargs=True)
        for i, layer in enumerate(lm.layers):
            self.hook(layer, f"hidden.{i}")
            self.hook(layer.self_attn, f"attn.{i}")
            self.hook(layer.mlp, f"mlp.{i}")
        self.hook(lm.norm, "final")
        if lm.hidden_size_per_layer_input:
            inner = lm.project_per_layer_inputs

            def project(*args, **kw):
                out = inner(*args, **kw)
                self.keep("ple", out)
                return out
            lm.project_per_layer_inputs = project

    def keep(self, name, x):
        self.got[name] = x[0].detach().float().cpu().clone()

    def hook(self, module, name):
        module.register_forward_hook(lambda _m, _a, out: self.keep(name, out[0] if isinstance(out, tuple) else out))


@torch.no_grad()
def forward(model, ids):
    """Logits of every position, in one pass without cache."""
    return model(input_ids=torch.tensor([ids], device=model.device), use_cache=False).logits[0].float().cpu()


@torch.no_grad()
def greedy(model, ids, n):
    """Prefill, then one token at a time with the cache. Never stops at an end token."""
    step, cache, tokens, margins, rows = torch.tensor([ids], device=model.device), None, [], [], []
    for _ in range(n):
        out = model(input_ids=step, past_key_values=cache, use_cache=True, logits_to_keep=1)
        cache, logits = out.past_key_values, out.logits[0, -1].float().cpu()
        top = logits.topk(2)
        tokens.append(int(top.indices[0]))
        margins.append(float(top.values[0] - top.values[1]))
        rows.append(logits)
        step = torch.tensor([[tokens[-1]]], device=model.device)
    return tokens, margins, torch.stack(rows)


def wanted(taps, prompt, tap):
    if taps is None:
        return True
    kinds = dict(t.partition(":")[::2] for t in taps).get(prompt)
    return kinds is not None and (not kinds or tap.split(".")[0] in kinds.split(","))


def dump(a):
    model, info = transformers.Gemma4ForConditionalGeneration.from_pretrained(
        a.model, dtype={"f32": torch.float32, "bf16": torch.bfloat16}[a.dtype], attn_implementation="eager",
        output_loading_info=True)
    # A wrong class or prefix loads nothing and only warns.
    assert not info["missing_keys"] and not info["unexpected_keys"] and not info["mismatched_keys"], info
    if a.lora:
        from peft import PeftModel
        model = PeftModel.from_pretrained(model, a.lora).get_base_model()
    model = model.to(a.device).eval()
    window = model.config.text_config.sliding_window
    tok = Tokenizer.from_file(str(a.model / "tokenizer.json"))
    taps = Taps(model.model.language_model)
    tensors, report, checks = {}, {}, {}
    for name, ids in prompts(tok, window).items():
        if a.prompts and name not in a.prompts:
            continue
        logits = forward(model, ids)
        tensors.update({f"{name}.{k}": v for k, v in taps.got.items() if wanted(a.taps, name, k)})
        tokens, margins, rows = greedy(model, ids, a.new_tokens)
        full = forward(model, ids + tokens[:-1])[len(ids) - 1:]
        checks[f"{name}: cached vs uncached logits, max abs diff"] = float((full - rows).abs().max())

        (T, V), top = logits.shape, logits[-1].topk(5)
        small = V <= ALL_LOGITS_UP_TO
        keep = list(range(T)) if small else sorted({*range(min(4, T)), *range(max(0, T - a.logit_rows), T)})
        tensors[f"{name}.logits"] = logits[keep]
        tensors[f"{name}.logit_positions"] = torch.tensor(keep, dtype=torch.float32)
        tensors[f"{name}.greedy_logits"] = rows if small else rows[:4]
        report[name] = dict(ids=ids, text=TEXTS.get(name), length=len(ids), top5_ids=top.indices.tolist(),
                            top5_logits=top.values.tolist(), greedy=tokens, greedy_margins=margins,
                            greedy_text=tok.decode(tokens, skip_special_tokens=False))
    meta = dict(model=a.model.resolve().name, dtype=a.dtype, device=a.device, attention="eager", torch=torch.__version__,
                transformers=transformers.__version__, sliding_window=window, batch=[])
    return dict(meta=meta, checks=checks, prompts=report), {k: v.contiguous() for k, v in tensors.items()}


def differences(out, report, tensors):
    """Why the stored dump is not this one."""
    stored = json.loads((out / "reference.json").read_text())["prompts"]
    for name in sorted({*stored, *report["prompts"]}):
        for key in ("ids", "greedy"):
            if stored.get(name, {}).get(key) != report["prompts"].get(name, {}).get(key):
                yield f"{name}: {key} differ"
    stored = load_file(out / "reference.safetensors")
    for name in sorted({*stored, *tensors}):
        if name not in stored or name not in tensors or stored[name].shape != tensors[name].shape:
            yield f"{name}: stored and made now have different shapes"
        elif (stored[name] - tensors[name]).abs().max() > NOISE * tensors[name].abs().max():
            yield f"{name}: differs by {(stored[name] - tensors[name]).abs().max():.1e}"


def main():
    a = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    a.add_argument("model", type=Path), a.add_argument("out", type=Path)
    a.add_argument("--dtype", choices=["f32", "bf16"], default="f32")
    a.add_argument("--device", default="cpu")
    a.add_argument("--new-tokens", type=int, default=32)
    a.add_argument("--logit-rows", type=int, default=64, help="rows kept per prompt when the vocabulary is large")
    a.add_argument("--prompts", nargs="*")
    a.add_argument("--taps", nargs="*")
    a.add_argument("--lora", type=Path)
    a.add_argument("--check", action="store_true")
    a = a.parse_args()
    torch.backends.cuda.matmul.allow_tf32 = False
    report, tensors = dump(a)
    if a.check:
        found = list(differences(a.out, report, tensors))
        sys.exit("\n".join(found) if found else 0)
    a.out.mkdir(parents=True, exist_ok=True)
    save_file(tensors, a.out / "reference.safetensors")
    (a.out / "reference.json").write_text(json.dumps(report, indent=1) + "\n")
    for k, v in report["checks"].items():
        print(f"{v:.1e}  {k}")
    for k, v in report["prompts"].items():
        print(f"{k}: {v['length']} tokens, greedy {v['greedy'][:12]}, smallest margin {min(v['greedy_margins']):.4f}")


if __name__ == "__main__":
    main()
