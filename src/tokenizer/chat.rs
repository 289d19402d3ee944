//! Chats to prompts, by the checkpoint's own template.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use minijinja::syntax::SyntaxConfig;
use minijinja::{Environment, ErrorKind, Value, context};
use minijinja_contrib::pycompat::unknown_method_callback;

use super::{BOS, SpecialTokens, Tokenizer};
use crate::{Error, Result};

const FILE: &str = "chat_template.jinja";
const CONFIG: &str = "tokenizer_config.json";
const NAME: &str = "chat";
/// Characters without a meaning of their own. One that occurs nowhere in a chat marks what somebody typed.
const PRIVATE_USE: std::ops::RangeInclusive<char> = '\u{E000}'..='\u{F8FF}';

/// Who says something.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    System,
    User,
    /// The model.
    Assistant,
}

impl Role {
    /// As templates name it.
    pub fn name(self) -> &'static str {
        match self {
            Self::System => "system",
            Self::User => "user",
            Self::Assistant => "assistant",
        }
    }
}

/// One message of a chat. What looks like a control token in it is text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Message {
    pub role: Role,
    pub content: String,
}

impl Message {
    pub fn new(role: Role, content: impl Into<String>) -> Self {
        Self { role, content: content.into() }
    }
}

/// The chat template of one checkpoint.
///
/// ```
/// use gemma_burn::tokenizer::{ChatTemplate, Message, Role, Tokenizer};
///
/// let dir = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures/tiny-e2b").as_ref();
/// let tokenizer = Tokenizer::from_dir(dir, 640)?;
/// let template = ChatTemplate::from_dir(dir, &tokenizer)?;
/// let chat = [Message::new(Role::User, "What does <turn|> mean?")];
/// assert_eq!(
///     template.render(&chat)?,
///     "<bos><|turn>user\nWhat does <turn|> mean?<turn|>\n<|turn>model\n"
/// );
/// let ids = template.encode(&tokenizer, &chat)?;
/// let end = tokenizer.id("<turn|>").expect("Gemma has it");
/// assert_eq!(ids.iter().filter(|&&id| id == end).count(), 1, "what was typed is text");
/// # Ok::<(), gemma_burn::Error>(())
/// ```
#[derive(Debug)]
pub struct ChatTemplate {
    file: PathBuf,
    environment: Environment<'static>,
    bos: String,
    /// Control tokens with their ids, longest first.
    control: Vec<(String, u32)>,
    /// What they begin with.
    beginnings: BTreeSet<char>,
}

impl ChatTemplate {
    /// Reads `chat_template.jinja`, or `chat_template` in tokenizer_config.json.
    ///
    /// # Errors
    /// A checkpoint without a template, as base models are, or one that does not parse.
    pub fn from_dir(dir: &Path, tokenizer: &Tokenizer) -> Result<Self> {
        let config = read_config(&dir.join(CONFIG))?;
        let bos = token(&config["bos_token"]).unwrap_or(BOS).to_owned();
        let (file, source) = match std::fs::read_to_string(dir.join(FILE)) {
            Ok(source) => (dir.join(FILE), source),
            Err(e) if e.kind() != std::io::ErrorKind::NotFound => return Err(Error::io(&dir.join(FILE), e)),
            Err(_) => {
                let source = named(&config["chat_template"]).ok_or_else(|| {
                    let reason = format!("neither {FILE} nor `chat_template` in {CONFIG}: this is not a chat model");
                    Error::tokenizer(dir, reason)
                })?;
                (dir.join(CONFIG), source.to_owned())
            }
        };
        let mut environment = Environment::new();
        // As transformers sets Jinja up.
        let syntax = SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build();
        environment.set_syntax(syntax.expect("these are the usual delimiters"));
        environment.set_unknown_method_callback(unknown_method_callback);
        environment.add_function(
            "raise_exception",
            |message: String| -> std::result::Result<Value, minijinja::Error> {
                Err(minijinja::Error::new(ErrorKind::InvalidOperation, message))
            },
        );
        environment
            .add_template_owned(NAME, source)
            .map_err(|e| Error::tokenizer(&file, format!("the chat template does not parse: {e}")))?;
        let mut control = tokenizer.added_tokens();
        control.sort_by_key(|(token, _)| std::cmp::Reverse(token.len()));
        let beginnings = control.iter().filter_map(|(token, _)| token.chars().next()).collect();
        Ok(Self { file, environment, bos, control, beginnings })
    }

    /// The prompt that asks for the next reply, to be looked at: in it, typed text and control tokens cannot be told apart.
    ///
    /// # Errors
    /// Messages that the template refuses, such as roles in an order that it does not know.
    pub fn render(&self, messages: &[Message]) -> Result<String> {
        let (prompt, mark) = self.render_marked(messages)?;
        Ok(prompt.replace(mark, ""))
    }

    /// The ids of the prompt that asks for the next reply, after exactly one `<bos>`.
    ///
    /// Control tokens are those that the template wrote; whatever the messages contain is text.
    ///
    /// # Errors
    /// As [`render`](Self::render).
    pub fn encode(&self, tokenizer: &Tokenizer, messages: &[Message]) -> Result<Vec<u32>> {
        let (prompt, mark) = self.render_marked(messages)?;
        let (mut ids, mut text) = (vec![], String::new());
        let mut rest = prompt.as_str();
        while let Some(next) = rest.chars().next() {
            if let Some((token, id)) = self.control.iter().find(|(token, _)| rest.starts_with(token.as_str())) {
                ids.extend(tokenizer.encode(&std::mem::take(&mut text), SpecialTokens::AsText)?);
                ids.push(*id);
                rest = &rest[token.len()..];
            } else {
                text.extend(Some(next).filter(|&c| c != mark));
                rest = &rest[next.len_utf8()..];
            }
        }
        ids.extend(tokenizer.encode(&text, SpecialTokens::AsText)?);
        Ok(tokenizer.with_one_bos(ids))
    }

    /// The prompt, in which the returned character stands inside of everything typed that could be a control token.
    fn render_marked(&self, messages: &[Message]) -> Result<(String, char)> {
        let template = self.environment.get_template(NAME).expect("it was added");
        let texts = || messages.iter().map(|message| message.content.as_str()).chain([template.source()]);
        let mark = PRIVATE_USE.into_iter().find(|&mark| texts().all(|text| !text.contains(mark)));
        let mark = mark.ok_or_else(|| Error::Request("the chat uses every character of private use".into()))?;
        let messages: Vec<Value> = messages
            .iter()
            .map(|message| context! { role => message.role.name(), content => self.marked(&message.content, mark) })
            .collect();
        let prompt = template
            .render(context! { messages, bos_token => &self.bos, add_generation_prompt => true })
            .map_err(|e| Error::tokenizer(&self.file, format!("the chat template refuses these messages: {e}")))?;
        Ok((prompt, mark))
    }

    /// Text in which no control token begins.
    fn marked(&self, text: &str, mark: char) -> String {
        let mut marked = String::with_capacity(text.len());
        for c in text.chars() {
            marked.push(c);
            marked.extend(self.beginnings.contains(&c).then_some(mark));
        }
        marked
    }
}

/// tokenizer_config.json, or nothing where there is none.
fn read_config(file: &Path) -> Result<serde_json::Value> {
    match std::fs::read(file) {
        Ok(json) => serde_json::from_slice(&json).map_err(|e| Error::tokenizer(file, format!("not JSON: {e}"))),
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => Ok(serde_json::Value::Null),
        Err(e) => Err(Error::io(file, e)),
    }
}

/// A token that is written as text or as an object with its properties.
fn token(value: &serde_json::Value) -> Option<&str> {
    value.as_str().or_else(|| value["content"].as_str())
}

/// The template itself, or the default one of several.
fn named(value: &serde_json::Value) -> Option<&str> {
    let default = || value.as_array()?.iter().find(|one| one["name"] == "default")?["template"].as_str();
    value.as_str().or_else(default)
}
