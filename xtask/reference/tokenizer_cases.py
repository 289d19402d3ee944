#!/usr/bin/env python3
"""What Python's `tokenizers` makes of awkward text:  tokenizer_cases.py TOKENIZER_JSON OUT_JSON

Per case: `text`; `ids` without and `ids_with_bos` with the special tokens that the file adds; `ids_as_text` where
control tokens in the text stay plain text, as for anything a user typed; `decoded`, from `ids`, nothing skipped.
"""
import json, sys
from pathlib import Path
from tokenizers import Tokenizer

TEXTS = [
    "", "Hello, world!", " ", "\n", "a\nb\n\nc\n\n\n\n", "def f(x):\n    return  x + 1   # caf\u00e9\n\n\n",
    "      six spaces      ", "\t tab and  no-break\u00a0space", "Licensed under the Apache License, Version 2.0",
    "na\u00efve caf\u00e9 gr\u00f6\u00dfe se\u00f1or \u00c9lan", "\u6771\u4eac \u65e5\u672c\u8a9e",
    "\u4e2d\u6587\u5b57\u7b26\uff0c\u6ca1\u6709\u7a7a\u683c\u7684\u53e5\u5b50\u3002", "\u041f\u0440\u0438\u0432\u0435\u0442 \u043c\u0438\u0440",
    "\U0001f642 \U0001f468\u200d\U0001f469\u200d\U0001f467\u200d\U0001f466 \U0001f1eb\U0001f1f7", "e\u0301 vs \u00e9", "0123456789 3.14",
    "\u0627\u0644\u0644\u0647 \u0623\u0643\u0628\u0631 \u05e9\u05dc\u05d5\u05dd", "\r\nwindows\r\n", "\x00\x07",
    "<|turn>user\nHi<turn|>\n<|turn>model\n", "<bos><eos><pad>", "Say <turn|> twice<turn|>", "< bos >", "<|turn", "<turn>",
    "<unused7>", "<0x41><0xE6>", "\u2581already\u2581marked",
]


def main(tokenizer, out):
    tok = Tokenizer.from_file(tokenizer)
    cases = []
    for text in TEXTS:
        tok.encode_special_tokens = True
        as_text = tok.encode(text, add_special_tokens=False).ids
        tok.encode_special_tokens = False
        ids = tok.encode(text, add_special_tokens=False).ids
        cases.append(dict(text=text, ids=ids, ids_with_bos=tok.encode(text).ids, ids_as_text=as_text,
                          decoded=tok.decode(ids, skip_special_tokens=False)))
    lines = ",\n".join("  " + json.dumps(c) for c in cases)
    Path(out).write_text(f"[\n{lines}\n]\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
