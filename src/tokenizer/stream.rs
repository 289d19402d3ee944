//! Ids in, whole characters out.

use super::Tokenizer;
use super::rules::ByteRun;
use crate::Result;

/// Turns tokens into text one by one.
///
/// The pieces joined are exactly what [`Tokenizer::decode`] gives for all the ids at once. A token costs the same
/// however much text came before it.
#[derive(Debug)]
pub struct DecodeStream<'t> {
    tokenizer: &'t Tokenizer,
    skip_special: bool,
    run: ByteRun,
    /// How many characters may still be taken off the beginning of the text.
    strip: usize,
}

impl<'t> DecodeStream<'t> {
    /// A stream at its beginning, with or without the control tokens in the text.
    pub fn new(tokenizer: &'t Tokenizer, skip_special: bool) -> Self {
        let strip = tokenizer.rules.strip.map_or(0, |(_, times)| times);
        Self { tokenizer, skip_special, run: ByteRun::default(), strip }
    }

    /// Takes the next id, and gives the text that is certain now, if any: never half a character.
    pub fn push(&mut self, id: u32) -> Result<Option<String>> {
        let token = self.tokenizer.known(id)?;
        if self.skip_special && self.tokenizer.is_special(&token) {
            return Ok(None);
        }
        let rules = &self.tokenizer.rules;
        let text = rules.text(token);
        let mut out = String::new();
        match rules.byte(&text) {
            Some(byte) => self.run.push(byte, &mut out),
            None => {
                self.run.end(&mut out);
                out.push_str(&text);
            }
        }
        Ok(self.stripped(out))
    }

    /// Gives the text that still waited for more bytes. No id may follow.
    pub fn flush(&mut self) -> Result<Option<String>> {
        let mut out = String::new();
        self.run.end(&mut out);
        Ok(self.stripped(out))
    }

    fn stripped(&mut self, mut out: String) -> Option<String> {
        if let Some((stripped, _)) = self.tokenizer.rules.strip {
            while self.strip > 0 && !out.is_empty() {
                if out.starts_with(stripped) {
                    out.remove(0);
                    self.strip -= 1;
                } else {
                    self.strip = 0;
                }
            }
        }
        (!out.is_empty()).then_some(out)
    }
}
