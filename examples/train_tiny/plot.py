#!/usr/bin/env python3
"""Draw the curve of a training run, and say how long the same steps would take elsewhere.

  plot.py OUT_DIR IMAGE [--other OUT_DIR]     (pip install matplotlib)

OUT_DIR is what `train_tiny --out` wrote. --other is a short run of the same batch on another device, such as
`train_tiny --device cpu --steps 9 --log-every 2`: its pace times the steps of the first is printed.
"""
import argparse, csv, json
from pathlib import Path
import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt


def rows(out):
    with open(out / "loss.csv") as file:
        return list(csv.DictReader(file))


def pace(out):
    """Steps per second between the first and the last row."""
    first, last = rows(out)[0], rows(out)[-1]
    return (int(last["step"]) - int(first["step"])) / (float(last["seconds"]) - float(first["seconds"]))


def main():
    a = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    a.add_argument("out", type=Path), a.add_argument("image", type=Path), a.add_argument("--other", type=Path)
    a = a.parse_args()
    report, curve = json.loads((a.out / "report.json").read_text()), rows(a.out)
    held_out = [(int(r["step"]), float(r["eval_loss"])) for r in curve if r["eval_loss"]]

    plt.rcParams["svg.fonttype"] = "none"
    plt.rcParams["svg.hashsalt"] = "train_tiny"
    figure, axes = plt.subplots(figsize=(7, 3.6), layout="constrained")
    axes.plot([int(r["step"]) for r in curve], [float(r["train_loss"]) for r in curve], lw=0.8, label="training")
    axes.plot(*zip(*held_out), "o-", ms=3, label=f"held out ({min(loss for _, loss in held_out):.3f})")
    for name, style in (("unigram", ":"), ("trigram", "--")):
        loss = report["eval_nats_per_token"][name]
        axes.axhline(loss, color="gray", ls=style, lw=1, label=f"{name}, held out ({loss:.3f})")
    axes.set(xlabel="step", ylabel="nats per token", ylim=(2, 7), xlim=(0, None))
    axes.legend()
    figure.savefig(a.image, metadata={"Date": None})

    steps = report["steps"]
    print(f"{steps} steps in {report['seconds']:.0f} s, {pace(a.out):.2f} steps/s, {report['epochs']:.1f} epochs")
    if a.other:
        print(f"{a.other}: {pace(a.other):.4f} steps/s, so {steps} steps take {steps / pace(a.other) / 3600:.1f} h")


if __name__ == "__main__":
    main()
