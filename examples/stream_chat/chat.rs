//! A chat: messages in, pieces of the reply out, one session as long as the template only appends.

use gemma_burn::engine::{Prompt, Session};
use gemma_burn::tokenizer::{ChatTemplate, Message, Role};
use gemma_burn::{Engine, Request, Result};

/// A conversation with its model.
pub struct Chat<'e> {
    engine: &'e Engine,
    template: ChatTemplate,
    session: Session<'e>,
    messages: Vec<Message>,
    max_tokens: usize,
}

impl<'e> Chat<'e> {
    pub fn new(engine: &'e Engine, template: ChatTemplate, system: Option<&str>, max_tokens: usize) -> Self {
        let messages = system.map(|text| Message::new(Role::System, text)).into_iter().collect();
        Self { engine, template, session: engine.session(), messages, max_tokens }
    }

    /// Says something and hands every piece of the reply to `hear`.
    pub fn say(&mut self, text: &str, mut hear: impl FnMut(&str)) -> Result<()> {
        self.messages.push(Message::new(Role::User, text));
        let ids = self.template.encode(self.engine.tokenizer(), &self.messages)?;
        // A template may rewrite the past, and an end token is not part of a message: then what was computed is of no use.
        let known = self.session.tokens().len();
        let fresh = if ids.starts_with(self.session.tokens()) {
            ids[known..].to_vec()
        } else {
            self.session = self.engine.session();
            ids
        };
        let request = Request { max_tokens: Some(self.max_tokens), ..Request::new(Prompt::Ids(fresh)) };
        let mut reply = String::new();
        for event in self.session.generate(request)? {
            let event = event?;
            hear(event.text());
            reply += event.text();
        }
        self.messages.push(Message::new(Role::Assistant, reply));
        Ok(())
    }

    /// Everything said so far.
    #[allow(dead_code, reason = "the tests look at it, the example does not")]
    pub fn messages(&self) -> &[Message] {
        &self.messages
    }

    /// Tokens of prompts and replies in the session.
    #[allow(dead_code, reason = "the tests look at it, the example does not")]
    pub fn tokens(&self) -> &[u32] {
        self.session.tokens()
    }
}
