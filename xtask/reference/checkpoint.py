#!/usr/bin/env python3
"""Write a seeded synthetic Gemma 4 text checkpoint with the real file layout and tensor names.

  checkpoint.py PROFILE OUT_DIR [--shards N] [--seed 2]

Writes config.json, generation_config.json, tokenizer.json, tokenizer_config.json, chat_template.jinja and
model.safetensors in bf16 (or N shards and model.safetensors.index.json). Tensors are streamed to disk: `e2b` is
9.3 GB and needs little memory. Each tensor is seeded by (seed, name), so sharding does not change the values.

Chosen so that a wrong implementation cannot pass by luck:
 * hidden sizes whose square root is not exact in bf16 (the embedding scale is rounded to the weights' type);
 * norm weights, layer scalars and the k_norm scale are all non-trivial;
 * the unused k/v weights of layers that share keys and values are large: reading them ruins the output.
"""
import argparse, hashlib, json, math, os, struct
from pathlib import Path
import numpy as np

S, F = "sliding_attention", "full_attention"
E2B = dict(hidden_size=1536, intermediate_size=6144, layer_types=([S] * 4 + [F]) * 7, num_attention_heads=8,
           num_key_value_heads=1, head_dim=256, global_head_dim=512, hidden_size_per_layer_input=256,
           num_kv_shared_layers=20, use_double_wide_mlp=True, sliding_window=512, vocab_size=262144,
           max_position_embeddings=131072)
TINY = dict(E2B, hidden_size=96, intermediate_size=80, layer_types=[S, S, F, S, S, S, F], num_attention_heads=4,
            head_dim=16, global_head_dim=32, hidden_size_per_layer_input=16, num_kv_shared_layers=3,
            sliding_window=8, vocab_size=640, max_position_embeddings=4096)
PROFILES = {
    "tiny-e2b": TINY,
    "tiny-e4b": dict(TINY, num_key_value_heads=2, use_double_wide_mlp=False),
    "tiny-31b": dict(TINY, num_key_value_heads=2, num_global_key_value_heads=1, attention_k_eq_v=True,
                     hidden_size_per_layer_input=0, num_kv_shared_layers=0, use_double_wide_mlp=False,
                     use_bidirectional_attention="vision"),
    "small": dict(E2B, hidden_size=320, intermediate_size=896, layer_types=([S] * 4 + [F]) * 2, head_dim=64,
                  global_head_dim=128, hidden_size_per_layer_input=32, num_kv_shared_layers=5, sliding_window=64,
                  vocab_size=8192, max_position_embeddings=8192),
    "demo": dict(E2B, hidden_size=192, intermediate_size=336, layer_types=([S] * 3 + [F]) * 2, num_attention_heads=4,
                 head_dim=32, global_head_dim=64, hidden_size_per_layer_input=32, num_kv_shared_layers=3,
                 sliding_window=64, vocab_size=2048, max_position_embeddings=1024),
    "e2b": E2B,
}

SPECIAL = {"<pad>": 0, "<eos>": 1, "<bos>": 2, "<unk>": 3, "<mask>": 4, "<|tool>": 46, "<tool|>": 47,
           "<|tool_call>": 48, "<tool_call|>": 49, "<|tool_response>": 50, "<tool_response|>": 51, '<|"|>': 52,
           "<|think|>": 98, "<|channel>": 100, "<channel|>": 101, "<|turn>": 105, "<turn|>": 106}
MEDIA = {"<|image>": 255999, "<|audio>": 256000, "<|image|>": 258880, "<|audio|>": 258881, "<image|>": 258882,
         "<audio|>": 258883, "<|video|>": 258884}

# What the real template renders for plain turns, without tools or thinking.
CHAT_TEMPLATE = (
    "{{ bos_token }}{% for m in messages %}<|turn>{{ 'model' if m['role'] == 'assistant' else m['role'] }}\n"
    "{{ m['content'] | trim }}<turn|>\n{% endfor %}{% if add_generation_prompt %}<|turn>model\n{% endif %}")


def special_ids(vocab_size):
    """The real ids; in a smaller vocabulary the media tokens are its last seven."""
    media = MEDIA if vocab_size > max(MEDIA.values()) else {t: vocab_size - len(MEDIA) + i for i, t in enumerate(MEDIA)}
    return {**SPECIAL, **media}


def licence():
    """The text that the fixtures' tokenizer is trained on."""
    text = (Path(__file__).parents[2] / "LICENSE-APACHE").read_text()
    return [text] + ["Élan vital, naïve café, größe, señor, 東京 日本語, Привет мир.\n\n\n"] * 20


# For training only: words start with their spaces, digits stand alone, runs of newlines stay together.
WORDS = r"▁+[^▁\n0-9]*|[^▁\n0-9]+|\n+|[0-9]"


def build_tokenizer(vocab_size, corpus, words=WORDS):
    """A BPE with the structure of Gemma's tokenizer.json, trained on texts; `words` matches what no merge crosses."""
    from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

    special = special_ids(vocab_size)
    first_byte = 238 if vocab_size >= 8192 else 107  # 238..493 in the real vocabulary
    fixed = {**special, **{f"<0x{b:02X}>": first_byte + b for b in range(256)}}
    taken = set(fixed.values())
    low = [i for i in range(5, 107) if i not in taken]  # unused in the real vocabulary too
    free = [i for i in range(107, vocab_size) if i not in taken]

    trainee = Tokenizer(models.BPE())
    trainee.normalizer = normalizers.Replace(" ", "▁")
    trainee.pre_tokenizer = pre_tokenizers.Split(Regex(words), "isolated")
    trainee.train_from_iterator(corpus, trainers.BpeTrainer(vocab_size=min(len(free), 16000), show_progress=False))
    state = json.loads(trainee.to_str())["model"]

    pieces = sorted(state["vocab"], key=state["vocab"].get)
    unused = low + free[len(pieces):]
    vocab = {**fixed, **dict(zip(pieces, free)), **{f"<unused{n}>": i for n, i in enumerate(unused)}}
    merges = [tuple(m) for m in state["merges"]]

    tok = Tokenizer(models.BPE(vocab=vocab, merges=merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    tok.normalizer = normalizers.Replace(" ", "▁")
    tok.pre_tokenizer = pre_tokenizers.Split(" ", "merged_with_previous")
    tok.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
    tok.post_processor = processors.TemplateProcessing(
        single="<bos> $A", pair="<bos> $A <bos>:1 $B:1", special_tokens=[("<bos>", SPECIAL["<bos>"])])
    tok.add_special_tokens([AddedToken(t, special=True, normalized=False) for t in sorted(special, key=special.get)])
    assert tok.get_vocab_size() == vocab_size and all(tok.token_to_id(t) == i for t, i in special.items())
    return tok


def make_configs(profile):
    ids = special_ids(profile["vocab_size"])
    text = dict(
        model_type="gemma4_text", dtype="bfloat16", attention_bias=False, attention_dropout=0.0, attention_k_eq_v=False,
        bos_token_id=2, eos_token_id=1, pad_token_id=0, enable_moe_block=False, final_logit_softcapping=30.0,
        hidden_activation="gelu_pytorch_tanh", initializer_range=0.02, moe_intermediate_size=None, num_experts=None,
        num_global_key_value_heads=None, num_hidden_layers=len(profile["layer_types"]), rms_norm_eps=1e-6,
        rope_parameters={F: dict(partial_rotary_factor=0.25, rope_theta=1e6, rope_type="proportional"),
                         S: dict(rope_theta=1e4, rope_type="default")},
        tie_word_embeddings=True, top_k_experts=None, use_bidirectional_attention=None, use_cache=True,
        vocab_size_per_layer_input=profile["vocab_size"])
    text.update(profile)
    config = dict(
        architectures=["Gemma4ForConditionalGeneration"], model_type="gemma4", dtype="bfloat16", tie_word_embeddings=True,
        text_config=text, vision_config=None, audio_config=None, initializer_range=0.02,
        boi_token_id=ids["<|image>"], eoi_token_id=ids["<image|>"], image_token_id=ids["<|image|>"],
        video_token_id=ids["<|video|>"], boa_token_id=ids["<|audio>"], eoa_token_index=ids["<audio|>"],
        audio_token_id=ids["<|audio|>"])
    generation = dict(bos_token_id=2, eos_token_id=[1, 106, 50], pad_token_id=0, do_sample=True, temperature=1.0,
                      top_k=64, top_p=0.95)
    tokenizer = dict(tokenizer_class="GemmaTokenizer", bos_token="<bos>", eos_token="<eos>", pad_token="<pad>",
                     unk_token="<unk>", mask_token="<mask>", padding_side="left", add_bos_token=True,
                     add_eos_token=False, sot_token="<|turn>", eot_token="<turn|>", soc_token="<|channel>",
                     eoc_token="<channel|>", think_token="<|think|>", escape_token='<|"|>')
    return dict(config=config, generation_config=generation, tokenizer_config=tokenizer)


def tensor_plan(c):
    """Yield (name, shape, mean, standard deviation)."""
    H, P, L = c["hidden_size"], c["hidden_size_per_layer_input"], len(c["layer_types"])
    root = "model.language_model."
    norm = lambda name, n, mean=1.0: (root + name + ".weight", (n,), mean, 0.2 * mean)
    lin = lambda name, o, i, gain=1.0: (root + name + ".weight", (o, i), 0.0, gain / math.sqrt(i))

    # Scaled embeddings of RMS 0.5 against sublayer outputs of RMS 1: with tied weights, larger ones make every
    # greedy continuation repeat one token. Final norm 8: logits of standard deviation 4, so the soft-cap matters.
    yield root + "embed_tokens.weight", (c["vocab_size"], H), 0.0, 0.5 / math.sqrt(H)
    yield norm("norm", H, 8.0)
    if P:
        yield root + "embed_tokens_per_layer.weight", (c["vocab_size_per_layer_input"], L * P), 0.0, 1 / math.sqrt(P)
        yield root + "per_layer_model_projection.weight", (L * P, H), 0.0, 0.5
        yield norm("per_layer_projection_norm", P)
    first_shared = L - c["num_kv_shared_layers"]
    for i, kind in enumerate(c["layer_types"]):
        full, shared, p = kind == F, i >= first_shared, f"layers.{i}."
        d = c["global_head_dim"] if full else c["head_dim"]
        k_eq_v = c["attention_k_eq_v"] and full
        kv = (k_eq_v and c["num_global_key_value_heads"]) or c["num_key_value_heads"]
        inter = c["intermediate_size"] * (2 if shared and c["use_double_wide_mlp"] else 1)
        poison = 5.0 if shared else 1.0
        yield root + p + "layer_scalar", (1,), 1.0, 0.1
        for n in ("input_layernorm", "post_attention_layernorm", "pre_feedforward_layernorm", "post_feedforward_layernorm"):
            yield norm(p + n, H)
        yield lin(p + "self_attn.q_proj", c["num_attention_heads"] * d, H)
        yield norm(p + "self_attn.q_norm", d)
        yield lin(p + "self_attn.k_proj", kv * d, H, poison)
        yield norm(p + "self_attn.k_norm", d, poison * 2 / math.sqrt(d))  # attention scale is 1.0: keep q·k near 2
        if not k_eq_v:
            yield lin(p + "self_attn.v_proj", kv * d, H, poison)
        yield lin(p + "self_attn.o_proj", H, c["num_attention_heads"] * d)
        yield lin(p + "mlp.gate_proj", inter, H)
        yield lin(p + "mlp.up_proj", inter, H)
        yield lin(p + "mlp.down_proj", H, inter)
        if P:
            yield lin(p + "per_layer_input_gate", P, H)
            yield lin(p + "per_layer_projection", H, P)
            yield norm(p + "post_per_layer_input_norm", H)


def values(name, shape, mean, std, seed, chunk=1 << 24):
    """One tensor as bf16 byte strings (rounded to nearest even)."""
    rng = np.random.Generator(np.random.PCG64(int.from_bytes(hashlib.sha256(f"{seed}:{name}".encode()).digest()[:8], "big")))
    left = math.prod(shape)
    while left:
        x = rng.standard_normal(min(left, chunk), dtype=np.float32)
        bits = (x * np.float32(std) + np.float32(mean)).view(np.uint32)
        yield ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype("<u2").tobytes()
        left -= len(x)


def write_safetensors(path, plan, seed):
    header, at = {"__metadata__": {"format": "pt"}}, 0
    for name, shape, *_ in plan:
        end = at + math.prod(shape) * 2
        header[name] = {"dtype": "BF16", "shape": list(shape), "data_offsets": [at, end]}
        at = end
    head = json.dumps(header, separators=(",", ":")).encode()
    head += b" " * (-len(head) % 8)
    with open(path, "wb") as f:
        f.write(struct.pack("<Q", len(head)) + head)
        for tensor in plan:
            for part in values(*tensor, seed):
                f.write(part)


def write_weights(out, plan, shards, seed):
    if shards == 1:
        return write_safetensors(out / "model.safetensors", plan, seed)
    total = sum(math.prod(t[1]) for t in plan)
    groups, done, weight_map = [[] for _ in range(shards)], 0, {}
    for tensor in plan:  # fill the shards in order, each to about the same size
        groups[shards * done // total].append(tensor)
        done += math.prod(tensor[1])
    for i, group in enumerate(groups):
        file = f"model-{i + 1:05d}-of-{shards:05d}.safetensors"
        write_safetensors(out / file, group, seed)
        weight_map.update({t[0]: file for t in group})
    index = {"metadata": {"total_size": total * 2, "total_parameters": total}, "weight_map": weight_map}
    (out / "model.safetensors.index.json").write_text(json.dumps(index, indent=2, sort_keys=True))


def main():
    a = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    a.add_argument("profile", choices=PROFILES), a.add_argument("out", type=Path)
    a.add_argument("--shards", type=int, default=1)
    a.add_argument("--seed", type=int, default=2, help="2 leaves no near ties in the fixtures' greedy tokens")
    a = a.parse_args()
    a.out.mkdir(parents=True, exist_ok=True)
    profile = PROFILES[a.profile]
    for name, value in make_configs(profile).items():
        (a.out / f"{name}.json").write_text(json.dumps(value, indent=2, sort_keys=True) + "\n")
    (a.out / "chat_template.jinja").write_text(CHAT_TEMPLATE)
    build_tokenizer(profile["vocab_size"], licence()).save(str(a.out / "tokenizer.json"), pretty=False)
    config = json.loads((a.out / "config.json").read_text())["text_config"]
    plan = list(tensor_plan(config))
    write_weights(a.out, plan, a.shards, a.seed)
    params = sum(math.prod(t[1]) for t in plan)
    print(f"{a.out}: {len(plan)} tensors, {params:,} parameters, {params * 2 / 1e6:.1f} MB of weights")


if __name__ == "__main__":
    main()
