#!/usr/bin/env python3
"""Make LoRA adapters with PEFT over a fixture, and the logits that PEFT computes with them.

  lora.py OUT_DIR [--check]

OUT_DIR/NAME/                     adapter_config.json and adapter_model.safetensors as PEFT saves them; B is not zero
OUT_DIR/reference.safetensors     ids [T], and per adapter NAME.logits [T, vocab] in f32, not merged

To check an adapter from elsewhere: dump.py MODEL OUT --lora ADAPTER, then gemma parity --lora ADAPTER --reference OUT.
"""
import argparse, json, sys, tempfile
from pathlib import Path
import torch
from peft import LoraConfig, get_peft_model
from safetensors.torch import load_file, save_file
from perplexity import load

IDS = [2, 130, 300, 301, 555, 120, 444, 300, 131, 600]  # longer than the fixture's window of 8
BASE = Path("tests/fixtures/tiny-e2b")
PROJECTIONS = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
ADAPTERS = {
    "all": (dict(r=2, lora_alpha=1, target_modules=PROJECTIONS), torch.float32),
    "pattern": (dict(r=3, lora_alpha=1, use_rslora=True, task_type="CAUSAL_LM",
                     target_modules=r".*language_model\.layers\.[1-5]\.(self_attn\.q_proj|mlp\.down_proj|per_layer_projection)"),
                torch.bfloat16),
}
NOISE = 2e-5  # of the largest logit


@torch.no_grad()
def make(name, out):
    model, _ = load(BASE)
    plain = model(input_ids=torch.tensor([IDS]), use_cache=False).logits[0]
    torch.manual_seed(1)
    options, dtype = ADAPTERS[name]
    model = get_peft_model(model, LoraConfig(init_lora_weights=False, **options))
    for key, parameter in model.named_parameters():
        if "lora_" in key:  # rounded before use, so that the file holds what was computed with
            parameter.data = parameter.data.to(dtype).float()
    logits = model(input_ids=torch.tensor([IDS]), use_cache=False).logits[0]
    model.save_pretrained(out / name)
    (out / name / "README.md").unlink(missing_ok=True)
    file = out / name / "adapter_model.safetensors"
    save_file({key: value.to(dtype) for key, value in load_file(file).items()}, file, {"format": "pt"})
    config = json.loads((out / name / "adapter_config.json").read_text())
    if isinstance(config["target_modules"], list):
        config["target_modules"].sort()  # a set in PEFT
    (out / name / "adapter_config.json").write_text(json.dumps(config, indent=1, sort_keys=True) + "\n")
    print(f"{name}: the adapter moves logits by up to {(logits - plain).abs().max():.2f} of {plain.abs().max():.2f}")
    return logits.contiguous()


def main():
    a = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    a.add_argument("out", type=Path), a.add_argument("--check", action="store_true")
    a = a.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        out = Path(scratch) if a.check else a.out
        tensors = {f"{name}.logits": make(name, out) for name in ADAPTERS}
        tensors["ids"] = torch.tensor(IDS, dtype=torch.int32)
        if not a.check:
            save_file(tensors, out / "reference.safetensors")
            return
        stored = load_file(a.out / "reference.safetensors")
        for name in ADAPTERS:
            made, kept = (load_file(d / name / "adapter_model.safetensors") for d in (out, a.out))
            if made.keys() != kept.keys() or any(not torch.equal(made[k], kept[k]) for k in made):
                sys.exit(f"{a.out / name} is not what this script makes")
        for key, value in tensors.items():
            if (stored[key].float() - value.float()).abs().max() > NOISE * value.float().abs().max():
                sys.exit(f"{a.out}: {key} differs")


if __name__ == "__main__":
    main()
