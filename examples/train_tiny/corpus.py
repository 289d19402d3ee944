#!/usr/bin/env python3
"""Fetch the training text and prepare it: OUT_DIR gets all of a checkpoint but its weights, and the text as token ids.

  corpus.py OUT_DIR

The text comes from two Debian packages, fetched by name with `apt-get download` (no root needed) and unpacked with
`dpkg-deb`; both are in the public domain:
  bible-kjv, bible-kjv-text   the King James Bible of 1611 ("the copyright ... is expired", says the package)
  r-cran-janeaustenr          Jane Austen's six novels, 1811 to 1818 (the package around them is MIT)

OUT_DIR/config.json, generation_config.json, tokenizer.json, tokenizer_config.json, chat_template.jinja
OUT_DIR/train.tokens, eval.tokens   ids as little-endian u16; a chapter is <bos> .. <eos>. Every 25th chapter is held out
OUT_DIR/corpus.json                 sources, sizes, and the loss of a unigram and a trigram model on the held-out ids
"""
import argparse, json, math, re, struct, subprocess, sys, tempfile, zlib
from collections import Counter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "xtask/reference"))
from checkpoint import CHAT_TEMPLATE, PROFILES, build_tokenizer, make_configs

BOS, EOS = 2, 1
HELD_OUT = 25
TEMPERATURE = 0.7  # of generation: a model this small is better company when it keeps to what it knows
# Words and marks apart: with few pieces, "lord" and "," serve better than "lord,".
WORDS = r"▁?[A-Za-z]+|▁?[^▁\nA-Za-z0-9]+|\n+|[0-9]|▁+"


def package(name, into):
    """The files of a Debian package, not installed."""
    subprocess.run(["apt-get", "download", "-q", name], cwd=into, check=True, stdout=sys.stderr)
    subprocess.run(["dpkg-deb", "-x", next(into.glob(f"{name}_*.deb")), into / name], check=True)
    return into / name


def bible(into):
    """Chapters, one verse per line."""
    program, text = package("bible-kjv", into) / "usr/bin/bible", package("bible-kjv-text", into) / "usr/lib"
    out = subprocess.run([program, "-p", text, "-f", "gen1:1-rev22:21"], check=True, capture_output=True, text=True)
    chapters = {}
    for line in out.stdout.splitlines():
        place, verse = line.split(" ", 1)
        chapters.setdefault(place.split(":")[0], []).append(" ".join(verse.split()))
    return ["\n".join(verses) for verses in chapters.values()]


def r_strings(data):
    """The character vector in one of R's serialized objects (format X, version 3)."""
    at = 14 + 4 + struct.unpack_from(">I", data, 14)[0]
    kind, count = struct.unpack_from(">II", data, at)
    assert data[:2] == b"X\n" and kind & 0xFF == 16, "not a serialized character vector"
    at, lines = at + 8, []
    for _ in range(count):
        size = struct.unpack_from(">i", data, at + 4)[0]
        lines.append(data[at + 8:at + 8 + max(size, 0)].decode())
        at += 8 + max(size, 0)
    return lines


def austen(into):
    """Chapters, one paragraph per line."""
    folder = package("r-cran-janeaustenr", into) / "usr/lib/R/site-library/janeaustenr/data"
    data, at, chapters = (folder / "Rdata.rdb").read_bytes(), 0, []
    while at < len(data):
        stream = zlib.decompressobj()
        lines = r_strings(stream.decompress(data[at + 4:]))
        at = len(data) - len(stream.unused_data)
        parts = re.split(r"^\s*(?:CHAPTER|Chapter) [IVXLC0-9]+\.?\s*$", "\n".join(lines), flags=re.M)
        for part in parts[1:]:
            paragraphs = [" ".join(p.split()).replace("_", "") for p in re.split(r"\n\s*\n", part)]
            paragraphs = [p for p in paragraphs if p and not re.fullmatch(r"(VOLUME|Volume) \w+|THE END|FINIS\.?|End of .*", p)]
            chapters.append("\n".join(paragraphs))
    return chapters


def unigram(train, held_out, vocabulary):
    """Nats per held-out token, counts plus one."""
    counts = Counter(i for ids in train for i in ids[1:])
    total = sum(counts.values()) + vocabulary
    return mean(-math.log((counts[i] + 1) / total) for ids in held_out for i in ids[1:])


def trigram(train, held_out, vocabulary):
    """Nats per held-out token of an interpolated Kneser-Ney model (discount 0.75)."""
    D, three, two, one = 0.75, Counter(), Counter(), Counter()
    for ids in train:
        three.update(zip(ids, ids[1:], ids[2:]))
        three.update([(None, ids[0], ids[1])])
    for _, b, c in three:
        two[b, c] += 1
    for _, c in two:
        one[c] += 1
    def followers(counts):
        sums, kinds = Counter(), Counter()
        for key, n in counts.items():
            sums[key[:-1]] += n
            kinds[key[:-1]] += 1
        return sums, kinds
    (sums3, kinds3), (sums2, kinds2), kinds1 = followers(three), followers(two), sum(one.values())

    def p(a, b, c):
        low = (max(one[c] - D, 0) + D * len(one) / vocabulary) / kinds1
        if sums2[b,]:
            low = (max(two[b, c] - D, 0) + D * kinds2[b,] * low) / sums2[b,]
        if sums3[a, b]:
            low = (max(three[a, b, c] - D, 0) + D * kinds3[a, b] * low) / sums3[a, b]
        return low
    return mean(-math.log(p(*t)) for ids in held_out for t in zip([None, *ids], ids, ids[1:]))


def mean(values):
    values = list(values)
    return sum(values) / len(values)


def main():
    a = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    a.add_argument("out", type=Path)
    out = a.parse_args().out
    out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        texts = {"bible-kjv-text": bible(Path(folder)), "r-cran-janeaustenr": austen(Path(folder))}
    train = [c for chapters in texts.values() for i, c in enumerate(chapters) if (i + 1) % HELD_OUT]
    held_out = [c for chapters in texts.values() for i, c in enumerate(chapters) if not (i + 1) % HELD_OUT]

    profile = PROFILES["demo"]
    tokenizer = build_tokenizer(profile["vocab_size"], train, WORDS)
    configs = make_configs(profile)
    configs["generation_config"]["temperature"] = TEMPERATURE
    for name, value in configs.items():
        (out / f"{name}.json").write_text(json.dumps(value, indent=2, sort_keys=True) + "\n")
    (out / "chat_template.jinja").write_text(CHAT_TEMPLATE)
    tokenizer.save(str(out / "tokenizer.json"), pretty=False)

    encode = lambda chapters: [[BOS, *tokenizer.encode(c, add_special_tokens=False).ids, EOS] for c in chapters]
    ids = {"train": encode(train), "eval": encode(held_out)}
    for name, chapters in ids.items():
        flat = [i for chapter in chapters for i in chapter]
        (out / f"{name}.tokens").write_bytes(struct.pack(f"<{len(flat)}H", *flat))
    baselines = {f.__name__: f(ids["train"], ids["eval"], profile["vocab_size"]) for f in (unigram, trigram)}
    report = dict(
        sources={name: dict(chapters=len(c), characters=sum(map(len, c))) for name, c in texts.items()},
        tokens={name: sum(map(len, chapters)) for name, chapters in ids.items()},
        characters={"train": sum(map(len, train)), "eval": sum(map(len, held_out))},
        eval_nats_per_token=baselines)
    (out / "corpus.json").write_text(json.dumps(report, indent=2) + "\n")
    print(json.dumps(report, indent=2))


if __name__ == "__main__":
    main()
