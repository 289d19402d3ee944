//! What the decoder of tokenizer.json does, in the form that a stream needs: token by token.

use serde::Deserialize;

/// One step of `decoder`. Others exist for other model families; they are refused when the file is read.
#[derive(Debug, Deserialize)]
#[serde(tag = "type")]
enum DecodeStep {
    Sequence { decoders: Vec<DecodeStep> },
    Replace { pattern: Pattern, content: String },
    ByteFallback {},
    Fuse {},
    Strip { content: char, start: usize, stop: usize },
}

#[derive(Debug, Deserialize)]
enum Pattern {
    String(String),
}

/// The decoder's steps in the only order that works token by token: replacements in each token, bytes joined to
/// characters, everything fused, spaces taken off the beginning.
#[derive(Debug, Default)]
pub(super) struct DecodeRules {
    replace: Vec<(String, String)>,
    byte_fallback: bool,
    fused: bool,
    /// A character to take off the beginning of the text, at most so many times.
    pub(super) strip: Option<(char, usize)>,
}

impl DecodeRules {
    /// Understands the value of `decoder`, or says what it cannot follow.
    pub(super) fn read(decoder: &serde_json::Value) -> Result<Self, String> {
        let step = DecodeStep::deserialize(decoder).map_err(|e| e.to_string())?;
        let mut rules = Self::default();
        rules.add(step)?;
        Ok(rules)
    }

    fn add(&mut self, step: DecodeStep) -> Result<(), String> {
        let Self { replace, byte_fallback, fused, strip } = self;
        match step {
            DecodeStep::Sequence { decoders } => return decoders.into_iter().try_for_each(|step| self.add(step)),
            DecodeStep::Replace { pattern: Pattern::String(from), content } if !*byte_fallback && !*fused => {
                replace.push((from, content));
            }
            DecodeStep::ByteFallback {} if !*byte_fallback && !*fused => *byte_fallback = true,
            DecodeStep::Fuse {} => *fused = true,
            DecodeStep::Strip { content, start, stop: 0 } if *fused && strip.is_none() => {
                *strip = Some((content, start));
            }
            step => return Err(format!("{step:?} in this place")),
        }
        Ok(())
    }

    /// The text that `token` stands for, unless it is a byte.
    pub(super) fn text(&self, token: String) -> String {
        self.replace.iter().fold(token, |text, (from, to)| text.replace(from, to))
    }

    /// The byte that the text of a token stands for.
    pub(super) fn byte(&self, text: &str) -> Option<u8> {
        let digits = text.strip_prefix("<0x")?.strip_suffix('>')?;
        if self.byte_fallback && digits.len() == 2 { u8::from_str_radix(digits, 16).ok() } else { None }
    }
}

/// Byte tokens in a row. They are text only as a whole: if they are not UTF-8, each of them becomes U+FFFD, the good
/// ones too. So they wait until the row has ended or cannot become UTF-8 any more.
#[derive(Debug, Default)]
pub(super) struct ByteRun {
    bytes: Vec<u8>,
    /// How many of `bytes` are whole characters.
    whole: usize,
    bad: bool,
}

impl ByteRun {
    /// Takes a byte, and adds to `out` what is certain now.
    pub(super) fn push(&mut self, byte: u8, out: &mut String) {
        self.bytes.push(byte);
        match std::str::from_utf8(&self.bytes[self.whole..]) {
            _ if self.bad => self.give_up(out),
            Ok(_) => self.whole = self.bytes.len(),
            Err(e) if e.error_len().is_none() => {}
            Err(_) => self.give_up(out),
        }
    }

    /// Adds what is left to `out`: the next token is not a byte, or there is none.
    pub(super) fn end(&mut self, out: &mut String) {
        match std::str::from_utf8(&self.bytes) {
            Ok(text) => out.push_str(text),
            Err(_) => self.give_up(out),
        }
        *self = Self::default();
    }

    fn give_up(&mut self, out: &mut String) {
        out.extend(self.bytes.drain(..).map(|_| char::REPLACEMENT_CHARACTER));
        self.whole = 0;
        self.bad = true;
    }
}
