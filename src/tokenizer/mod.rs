//! Text to token ids and back, by the checkpoint's own tokenizer.json.

mod chat;
mod file;
mod pieces;
mod rules;
mod stream;

use std::path::{Path, PathBuf};

use tokenizers::{
    DecoderWrapper, Model, NormalizedString, Normalizer, NormalizerWrapper, OffsetReferential, OffsetType,
    PostProcessorWrapper, PreTokenizedString, PreTokenizer, PreTokenizerWrapper, TokenizerImpl,
};

pub use self::chat::{ChatTemplate, Message, Role};
use self::pieces::PieceBpe;
use self::rules::DecodeRules;
pub use self::stream::DecodeStream;
use crate::{Error, Result};

type Inner = TokenizerImpl<PieceBpe, NormalizerWrapper, PreTokenizerWrapper, PostProcessorWrapper, DecoderWrapper>;

const BOS: &str = "<bos>";

/// What `<bos>`, `<|turn>` and their like mean in a text to encode.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SpecialTokens {
    /// They are control tokens: for the frame that a template or the program itself wrote.
    Parse,
    /// They are the characters they consist of: for everything that somebody typed.
    AsText,
}

/// The tokenizer of one checkpoint.
///
/// ```no_run
/// use gemma_burn::tokenizer::{SpecialTokens, Tokenizer};
///
/// let tokenizer = Tokenizer::from_dir("gemma-4-E2B".as_ref(), 262_144)?;
/// let ids = tokenizer.encode_prompt("Hello, world!", SpecialTokens::AsText)?;
/// assert_eq!(ids, [2, 9259, 236764, 1902, 236888]);
/// assert_eq!(tokenizer.decode(&ids, true)?, "Hello, world!");
/// # Ok::<(), gemma_burn::Error>(())
/// ```
#[derive(Debug)]
pub struct Tokenizer {
    file: PathBuf,
    inner: Inner,
    rules: DecodeRules,
    bos_id: u32,
    vocab_size: usize,
}

impl Tokenizer {
    /// Reads `dir/tokenizer.json` for a model of `vocab_size` tokens.
    ///
    /// Refuses a file that belongs to another model, one without `<bos>`, and one in which typed text could become a
    /// control token. The post-processor, truncation and padding of the file are ignored.
    pub fn from_dir(dir: &Path, vocab_size: usize) -> Result<Self> {
        let file = dir.join("tokenizer.json");
        let (inner, rules) = file::read(&file, vocab_size)?;
        let bos_id = inner.token_to_id(BOS).ok_or_else(|| {
            Error::tokenizer(
                &file,
                "no token <bos>, which begins every Gemma prompt: this is another model's tokenizer",
            )
        })?;
        let tokenizer = Self { file, inner, rules, bos_id, vocab_size };
        tokenizer.check_special_tokens()?;
        Ok(tokenizer)
    }

    /// The ids of `text`. Never adds `<bos>`.
    pub fn encode(&self, text: &str, special: SpecialTokens) -> Result<Vec<u32>> {
        match special {
            SpecialTokens::Parse => self.inner.encode_fast(text, false).map(|encoding| encoding.get_ids().to_vec()),
            SpecialTokens::AsText => self.encode_as_text(text),
        }
        .map_err(|e| self.error(format!("cannot encode the text ({e})")))
    }

    /// The ids of a whole prompt: those of `text` after exactly one `<bos>`, whether or not `text` begins with it.
    pub fn encode_prompt(&self, text: &str, special: SpecialTokens) -> Result<Vec<u32>> {
        Ok(self.with_one_bos(self.encode(text, special)?))
    }

    /// `ids` after exactly one `<bos>`, however many they begin with.
    fn with_one_bos(&self, mut ids: Vec<u32>) -> Vec<u32> {
        let leading = ids.iter().take_while(|&&id| id == self.bos_id).count();
        ids.splice(..leading, [self.bos_id]);
        ids
    }

    /// The text of `ids`, with or without the control tokens among them.
    pub fn decode(&self, ids: &[u32], skip_special: bool) -> Result<String> {
        ids.iter().try_for_each(|&id| self.known(id).map(drop))?;
        self.inner.decode(ids, skip_special).map_err(|e| self.error(format!("cannot decode the ids ({e})")))
    }

    /// Decodes ids as they come, for somebody to read: control tokens are not part of the text.
    pub fn stream(&self) -> DecodeStream<'_> {
        DecodeStream::new(self, true)
    }

    /// The id of `<bos>`.
    pub fn bos_id(&self) -> u32 {
        self.bos_id
    }

    /// The token `id` as the file writes it, spaces as `▁`.
    pub fn token(&self, id: u32) -> Option<String> {
        self.inner.id_to_token(id)
    }

    /// The id of the token that the file writes as `token`.
    pub fn id(&self, token: &str) -> Option<u32> {
        self.inner.token_to_id(token)
    }

    /// How many tokens the model has.
    pub fn vocab_size(&self) -> usize {
        self.vocab_size
    }

    /// What `encode_fast` does, without looking for added tokens.
    fn encode_as_text(&self, text: &str) -> tokenizers::Result<Vec<u32>> {
        let mut normalized = NormalizedString::from(text);
        if let Some(normalizer) = self.inner.get_normalizer() {
            normalizer.normalize(&mut normalized)?;
        }
        let mut words = PreTokenizedString::from(normalized);
        if let Some(pre_tokenizer) = self.inner.get_pre_tokenizer() {
            pre_tokenizer.pre_tokenize(&mut words)?;
        }
        let mut ids = Vec::new();
        for (word, ..) in words.get_splits(OffsetReferential::Normalized, OffsetType::None) {
            ids.extend(self.inner.get_model().tokenize(word)?.into_iter().map(|token| token.id));
        }
        Ok(ids)
    }

    /// If no control token comes out of its own spelling, then none comes out of any text: merges inside a piece of text
    /// happen in the same order whatever surrounds it.
    fn check_special_tokens(&self) -> Result<()> {
        for (id, added) in self.inner.get_added_tokens_decoder() {
            if added.special && self.encode(&added.content, SpecialTokens::AsText)? == [id] {
                return Err(self.error(format!("the control token {:?} can be typed as plain text", added.content)));
            }
        }
        Ok(())
    }

    /// Control tokens and whatever else the file adds to the vocabulary, as they are written, with their ids.
    fn added_tokens(&self) -> Vec<(String, u32)> {
        self.inner.get_added_tokens_decoder().into_iter().map(|(id, added)| (added.content, id)).collect()
    }

    fn is_special(&self, token: &str) -> bool {
        self.inner.get_added_vocabulary().is_special_token(token)
    }

    fn known(&self, id: u32) -> Result<String> {
        self.token(id).ok_or_else(|| {
            self.error(format!("token id {id} is not in the vocabulary (the model has {} tokens)", self.vocab_size))
        })
    }

    fn error(&self, reason: String) -> Error {
        Error::tokenizer(&self.file, reason)
    }
}
