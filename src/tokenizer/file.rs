//! tokenizer.json: read, checked against the model, and turned into the parts that encode and decode.

use std::path::Path;

use serde::de::{self, Deserialize, Deserializer, SeqAccess, Visitor};
use tokenizers::models::bpe::{BPE, Merges, Vocab};
use tokenizers::{AddedToken, DecoderWrapper, NormalizerWrapper, PreTokenizerWrapper};

use super::Inner;
use super::pieces::{PieceBpe, joints};
use super::rules::DecodeRules;
use crate::{Error, Result};

/// How many ids of the model may have no token: checkpoints round the vocabulary up for the sake of matrix shapes.
const MAX_PADDING: usize = 256;

#[derive(serde::Deserialize)]
struct File {
    #[serde(default)]
    added_tokens: Vec<AddedTokenWithId>,
    normalizer: Option<NormalizerWrapper>,
    pre_tokenizer: Option<PreTokenizerWrapper>,
    decoder: serde_json::Value,
    model: ModelPart,
}

#[derive(serde::Deserialize)]
struct AddedTokenWithId {
    id: u32,
    #[serde(flatten)]
    token: AddedToken,
}

#[derive(serde::Deserialize)]
struct ModelPart {
    #[serde(rename = "type", default)]
    kind: Option<String>,
    vocab: Vocab,
    merges: Vec<Merge>,
    unk_token: Option<String>,
    continuing_subword_prefix: Option<String>,
    end_of_word_suffix: Option<String>,
    #[serde(default)]
    fuse_unk: bool,
    #[serde(default)]
    byte_fallback: bool,
    #[serde(default)]
    ignore_merges: bool,
}

/// Reads `file` for a model of `vocab_size` tokens.
pub(super) fn read(file: &Path, vocab_size: usize) -> Result<(Inner, DecodeRules)> {
    let text = std::fs::read(file).map_err(|e| match e.kind() {
        std::io::ErrorKind::NotFound => {
            Error::tokenizer(file, "no such file: a model folder needs the tokenizer.json of its checkpoint")
        }
        _ => Error::io(file, e),
    })?;
    let parsed: File = serde_json::from_slice(&text)
        .map_err(|e| Error::tokenizer(file, format!("damaged, or no BPE tokenizer ({e}): fetch it again")))?;
    check_ids(file, &parsed, vocab_size)?;
    let unusable = |e: tokenizers::Error| Error::tokenizer(file, format!("unusable ({e}): fetch it again"));
    let rules = DecodeRules::read(&parsed.decoder)
        .map_err(|e| Error::tokenizer(file, format!("`decoder` is not one that Gemma uses ({e})")))?;
    let decoder: DecoderWrapper = serde_json::from_value(parsed.decoder).map_err(|e| unusable(e.into()))?;
    let mut inner = Inner::new(model(parsed.model).map_err(unusable)?);
    inner.with_normalizer(parsed.normalizer).map_err(unusable)?;
    inner.with_pre_tokenizer(parsed.pre_tokenizer).with_decoder(Some(decoder));
    inner.add_tokens(parsed.added_tokens.iter().map(|added| added.token.clone())).map_err(unusable)?;
    for AddedTokenWithId { id, token } in &parsed.added_tokens {
        if inner.token_to_id(&token.content) != Some(*id) {
            let reason = format!("added token {:?} has id {id} there and another in `vocab`", token.content);
            return Err(Error::tokenizer(file, reason));
        }
    }
    Ok((inner, rules))
}

fn model(part: ModelPart) -> tokenizers::Result<PieceBpe> {
    if let Some(kind) = part.kind.filter(|kind| kind != "BPE") {
        return Err(format!("`model.type` is {kind:?}, expected \"BPE\"").into());
    }
    let merges: Merges = part.merges.into_iter().map(|Merge(left, right)| (left, right)).collect();
    let joints = joints(&part.vocab, &merges);
    let mut builder = BPE::builder().vocab_and_merges(part.vocab, merges);
    if let Some(token) = part.unk_token {
        builder = builder.unk_token(token);
    }
    if let Some(prefix) = part.continuing_subword_prefix {
        builder = builder.continuing_subword_prefix(prefix);
    }
    if let Some(suffix) = part.end_of_word_suffix {
        builder = builder.end_of_word_suffix(suffix);
    }
    let builder = builder.fuse_unk(part.fuse_unk).byte_fallback(part.byte_fallback).ignore_merges(part.ignore_merges);
    Ok(PieceBpe::new(builder.build()?, joints))
}

/// Every id must be one of the model's, and the model must not be able to produce ids that mean nothing.
fn check_ids(file: &Path, parsed: &File, vocab_size: usize) -> Result<()> {
    let way_out = "this tokenizer.json belongs to another model, take the one from the model's own checkpoint";
    let plain = parsed.model.vocab.iter().map(|(token, id)| (token.as_str(), *id));
    let added = parsed.added_tokens.iter().map(|added| (added.token.content.as_str(), added.id));
    let mut known = vec![false; vocab_size];
    for (token, id) in plain.chain(added) {
        let Some(known) = known.get_mut(id as usize) else {
            let reason = format!("token {token:?} has id {id}, but the model has {vocab_size} tokens: {way_out}");
            return Err(Error::tokenizer(file, reason));
        };
        *known = true;
    }
    let count = known.iter().filter(|known| **known).count();
    if vocab_size - count > MAX_PADDING {
        let reason = format!("{count} tokens, but the model has {vocab_size}: {way_out}");
        return Err(Error::tokenizer(file, reason));
    }
    Ok(())
}

/// Two tokens that become one. Files write it as `["a", "b"]` or, older ones, as `"a b"`.
struct Merge(String, String);

impl<'de> Deserialize<'de> for Merge {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct MergeVisitor;
        impl<'de> Visitor<'de> for MergeVisitor {
            type Value = Merge;

            fn expecting(&self, f: &mut std::fmt::Formatter) -> std::fmt::Result {
                f.write_str("a merge: two tokens")
            }

            fn visit_str<E: de::Error>(self, line: &str) -> Result<Merge, E> {
                let pair = line.split_once(' ').filter(|(_, right)| !right.contains(' '));
                let (left, right) = pair.ok_or_else(|| E::invalid_value(de::Unexpected::Str(line), &self))?;
                Ok(Merge(left.to_owned(), right.to_owned()))
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut pair: A) -> Result<Merge, A::Error> {
                let mut next = |i| pair.next_element()?.ok_or_else(|| de::Error::invalid_length(i, &"two tokens"));
                Ok(Merge(next(0)?, next(1)?))
            }
        }
        deserializer.deserialize_any(MergeVisitor)
    }
}
