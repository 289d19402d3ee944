//! Byte pair encoding in pieces.
//!
//! To this tokenizer the text between two control tokens is one word, and merging a word of a megabyte takes seconds.
//! But most places in a text are seams: no merge joins the two characters there, so both sides can be encoded alone,
//! with the same result. That keeps the merge queue short and lets the cache of words work.

use std::collections::{HashMap, HashSet};
use std::path::{Path, PathBuf};

use tokenizers::models::bpe::{BPE, BpeTrainer, Merges, Vocab};
use tokenizers::{Model, Result, Token};

/// The last character of a merge's left token, and the first of its right one.
type Joint = (char, char);

/// The model of tokenizer.json, cut at seams.
#[derive(Debug)]
pub(super) struct PieceBpe {
    bpe: BPE,
    /// Every pair of characters that some merge joins; `None` if nothing can be said about seams.
    joints: Option<HashSet<Joint>>,
}

impl PieceBpe {
    /// `joints` are those of the merges that `bpe` was built from.
    pub(super) fn new(bpe: BPE, joints: Option<HashSet<Joint>>) -> Self {
        // With a prefix or suffix, the first and last characters of a word are encoded differently.
        let plain = bpe.continuing_subword_prefix.is_none() && bpe.end_of_word_suffix.is_none() && !bpe.ignore_merges;
        Self { joints: joints.filter(|_| plain && bpe.byte_fallback), bpe }
    }

    fn pieces<'a>(&self, text: &'a str) -> Vec<&'a str> {
        let Some(joints) = &self.joints else { return vec![text] };
        let chars = || text.char_indices();
        let seams = chars().zip(chars().skip(1)).filter(|&((_, left), (_, right))| !joints.contains(&(left, right)));
        let mut pieces = Vec::new();
        let mut start = 0;
        for (_, (end, _)) in seams {
            pieces.push(&text[start..end]);
            start = end;
        }
        pieces.push(&text[start..]);
        pieces
    }
}

/// The joints of `merges`; `None` if characters that are not in the vocabulary may be joined too, as bytes or because
/// one `<unk>` stands for several.
pub(super) fn joints(vocab: &Vocab, merges: &Merges) -> Option<HashSet<Joint>> {
    let bytes: HashSet<String> = (0..=u8::MAX).map(|byte| format!("<0x{byte:02X}>")).collect();
    if bytes.iter().any(|byte| !vocab.contains_key(byte)) {
        return None;
    }
    let joint = |(left, right): &(String, String)| {
        let of_bytes = bytes.contains(left) || bytes.contains(right);
        if of_bytes { None } else { left.chars().next_back().zip(right.chars().next()) }
    };
    merges.iter().map(joint).collect()
}

impl Model for PieceBpe {
    type Trainer = BpeTrainer;

    fn tokenize(&self, text: &str) -> Result<Vec<Token>> {
        let mut tokens = Vec::new();
        let mut start = 0;
        for piece in self.pieces(text) {
            tokens.extend(self.bpe.tokenize(piece)?.into_iter().map(|mut token| {
                token.offsets = (start + token.offsets.0, start + token.offsets.1);
                token
            }));
            start += piece.len();
        }
        Ok(tokens)
    }

    fn token_to_id(&self, token: &str) -> Option<u32> {
        self.bpe.token_to_id(token)
    }

    fn id_to_token(&self, id: u32) -> Option<String> {
        self.bpe.id_to_token(id)
    }

    fn get_vocab(&self) -> HashMap<String, u32> {
        self.bpe.get_vocab()
    }

    fn get_vocab_size(&self) -> usize {
        self.bpe.get_vocab_size()
    }

    fn save(&self, folder: &Path, prefix: Option<&str>) -> Result<Vec<PathBuf>> {
        self.bpe.save(folder, prefix)
    }

    fn get_trainer(&self) -> BpeTrainer {
        self.bpe.get_trainer()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A vocabulary of all bytes, some characters and what `merges` make of them.
    fn model(merges: &[(&str, &str)]) -> PieceBpe {
        let bytes = (0..=u8::MAX).map(|byte| format!("<0x{byte:02X}>"));
        let merged = merges.iter().map(|(left, right)| format!("{left}{right}"));
        let tokens = bytes.chain("abcd".chars().map(String::from)).chain(merged);
        let vocab: Vocab = tokens.zip(0..).collect();
        let merges: Merges = merges.iter().map(|&(left, right)| (left.to_owned(), right.to_owned())).collect();
        let joints = joints(&vocab, &merges);
        let bpe = BPE::builder().vocab_and_merges(vocab, merges).byte_fallback(true).build();
        PieceBpe::new(bpe.expect("the merges are in the vocabulary"), joints)
    }

    #[test]
    fn text_is_cut_where_no_merge_joins() {
        let model = model(&[("a", "b"), ("ab", "c")]);
        assert_eq!(model.pieces("abcabd\u{e9}a"), ["abc", "ab", "d", "\u{e9}", "a"]);
        assert_eq!(model.pieces(""), [""]);
    }

    #[test]
    fn pieces_give_the_ids_and_places_of_the_whole() {
        let model = model(&[("b", "c"), ("a", "b"), ("bc", "d"), ("a", "bcd")]);
        for text in ["abcd", "abab", "aabcdbcdd", "a\u{e9}bc", "ddcba", "a"] {
            assert_eq!(model.tokenize(text).unwrap(), model.bpe.tokenize(text).unwrap(), "{text}");
        }
    }

    #[test]
    fn text_stays_whole_where_bytes_may_be_joined() {
        let model = model(&[("<0xC3>", "<0xA9>")]);
        assert_eq!(model.pieces("\u{e9}a"), ["\u{e9}a"]);
    }
}
