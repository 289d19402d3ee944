//! A model with its tokenizer and its ways to end: requests in, events out.

mod decoder;
mod event;
mod generation;
pub(crate) mod plain;
mod request;
pub mod stop;

use std::path::Path;

use burn::tensor::Device;

pub use event::{Event, Finish, FinishReason, Timing, Usage};
pub use generation::Generation;
pub use plain::{PREFILL_CHUNK, prefill, step};
pub use request::{Prompt, Request};

use crate::config::{GemmaConfig, GenerationConfig, end_ids};
use crate::device::Dtype;
use crate::model::Gemma;
use crate::sampler::{Choose, Sampling};
use crate::tokenizer::Tokenizer;
use crate::weights::{self, LoadOptions, LoadReport, LoraOptions, PerLayerPlacement, Storage};
use crate::{Error, Result};
use decoder::Decoder;
use request::{Limits, ValidRequest};

/// Context where the caller names none, in tokens; shorter where the model's is.
pub const DEFAULT_CONTEXT: usize = 4096;

/// How tokens are computed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ComputePath {
    /// The Burn modules: any device.
    Plain,
    /// Prompts as they are faster, tokens through the decode kernels.
    #[cfg(feature = "cube")]
    Fused {
        /// Format of keys and values.
        kv: Dtype,
    },
}

impl ComputePath {
    /// What suits a device: the kernels wherever CubeCL runs, else the modules.
    pub fn best(#[allow(unused)] device: &Device) -> Self {
        #[cfg(feature = "cube")]
        if matches!(device.as_dispatch(), burn::backend::DispatchDevice::Cube(_)) {
            return Self::Fused { kv: Dtype::Bf16 };
        }
        Self::Plain
    }

    /// Refuses an adapter that is to stay beside the weights where the kernels would not see it.
    fn check_lora(self, lora: Option<LoraOptions>) -> Result<()> {
        match lora {
            Some(LoraOptions { keep: true, .. }) if self != Self::Plain => {
                let reason = "it reads merged weights only: leave out --lora-keep, or use --path plain";
                Err(Error::Fused(reason.into()))
            }
            _ => Ok(()),
        }
    }

    /// How the path needs weights to be held.
    pub fn storage(self) -> Storage {
        match self {
            Self::Plain => Storage::Computable,
            #[cfg(feature = "cube")]
            Self::Fused { .. } => Storage::AsFile,
        }
    }
}

impl std::fmt::Display for ComputePath {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Plain => f.write_str("plain"),
            #[cfg(feature = "cube")]
            Self::Fused { kv } => write!(f, "fused, keys and values in {kv}"),
        }
    }
}

/// How to load an engine.
#[derive(Default)]
pub struct EngineOptions<'a> {
    /// The format to compute in; the device's default where absent.
    pub dtype: Option<Dtype>,
    /// Longest conversation in tokens; [`DEFAULT_CONTEXT`] where absent.
    pub context: Option<usize>,
    /// [`ComputePath::best`] where absent.
    pub path: Option<ComputePath>,
    pub per_layer: PerLayerPlacement,
    /// An adapter over the weights. The fused path needs it merged.
    pub lora: Option<LoraOptions<'a>>,
    /// Called with bytes done and bytes in all.
    pub progress: Option<&'a dyn Fn(u64, u64)>,
}

/// A loaded model that serves requests.
pub struct Engine {
    model: Gemma,
    tokenizer: Tokenizer,
    device: Device,
    end_ids: Vec<u32>,
    sampling: Sampling,
    suppress: Vec<u32>,
    context: usize,
    path: ComputePath,
    report: LoadReport,
}

impl Engine {
    /// Loads a checkpoint folder with default options.
    ///
    /// # Errors
    /// Any of the folder's files is missing, damaged or of another model.
    pub fn load(dir: impl AsRef<Path>, device: &Device) -> Result<Self> {
        Self::load_with(dir, device, &EngineOptions::default())
    }

    /// Loads a checkpoint folder. The small files are read first, so that what is wrong with them is known at once.
    ///
    /// # Errors
    /// As [`load`](Self::load), and a context that the model is not made for.
    pub fn load_with(dir: impl AsRef<Path>, device: &Device, options: &EngineOptions) -> Result<Self> {
        let dir = dir.as_ref();
        let config = GemmaConfig::from_dir(dir)?;
        let context = checked_context(options.context, config.max_positions)?;
        let tokenizer = Tokenizer::from_dir(dir, config.vocab_size)?;
        let generation = GenerationConfig::from_dir(dir)?;
        let path = options.path.unwrap_or_else(|| ComputePath::best(device));
        path.check_lora(options.lora)?;
        let load = LoadOptions {
            dtype: options.dtype,
            per_layer: options.per_layer,
            storage: path.storage(),
            lora: options.lora,
            progress: options.progress,
        };
        let (model, report) = weights::load_with(&config, dir, device, &load)?;
        Ok(Self {
            model,
            tokenizer,
            device: device.clone(),
            end_ids: end_ids(&generation, &config.eos_token_ids),
            sampling: generation.sampling(),
            suppress: generation.suppress_tokens,
            context,
            path,
            report,
        })
    }

    /// A new conversation.
    pub fn session(&self) -> Session<'_> {
        Session { engine: self, decoder: None, tokens: vec![] }
    }

    /// How tokens are computed.
    pub fn path(&self) -> ComputePath {
        self.path
    }

    pub fn model(&self) -> &Gemma {
        &self.model
    }

    pub fn tokenizer(&self) -> &Tokenizer {
        &self.tokenizer
    }

    pub fn device(&self) -> &Device {
        &self.device
    }

    /// How tokens are chosen unless a request says otherwise: as generation_config.json has it.
    pub fn default_sampling(&self) -> &Sampling {
        &self.sampling
    }

    /// What became of every tensor of the checkpoint.
    pub fn load_report(&self) -> &LoadReport {
        &self.report
    }
}

fn checked_context(asked: Option<usize>, most: usize) -> Result<usize> {
    match asked {
        None => Ok(DEFAULT_CONTEXT.min(most)),
        Some(0) => Err(Error::Request("--context is 0; ask for at least 2 tokens".into())),
        Some(context) if context > most => {
            Err(Error::Request(format!("--context is {context}, but this model is made for at most {most} tokens")))
        }
        Some(context) => Ok(context),
    }
}

/// One conversation.
pub struct Session<'e> {
    engine: &'e Engine,
    /// Made with the first prompt.
    decoder: Option<Decoder>,
    /// All tokens so far. The last one is not taken in yet while it is only generated.
    tokens: Vec<u32>,
}

impl<'e> Session<'e> {
    /// Continues the conversation with a prompt.
    ///
    /// # Errors
    /// A request that cannot be served: empty, too long for the context, unknown tokens, impossible sampling. Nothing has
    /// been computed then, and the session is as it was.
    pub fn generate(&mut self, request: impl Into<Request>) -> Result<Generation<'_, 'e>> {
        let request = self.validate(request.into())?;
        Ok(Generation::new(self, request, None))
    }

    /// As [`generate`](Self::generate), with a rule of one's own in place of the request's sampling. It sees the model's
    /// logits as they are: nothing is suppressed or penalized.
    ///
    /// # Errors
    /// As [`generate`](Self::generate).
    pub fn generate_with<'s>(
        &'s mut self,
        request: impl Into<Request>,
        rule: impl Choose + 's,
    ) -> Result<Generation<'s, 'e>> {
        let request = self.validate(request.into())?;
        Ok(Generation::new(self, request, Some(Box::new(rule))))
    }

    fn validate(&self, request: Request) -> Result<ValidRequest> {
        let engine = self.engine;
        let limits = Limits {
            tokenizer: &engine.tokenizer,
            vocab_size: engine.model.config().vocab_size,
            context: engine.context,
            max_positions: engine.model.config().max_positions,
            used: self.tokens.len(),
            default_sampling: &engine.sampling,
            suppress: &engine.suppress,
        };
        ValidRequest::new(request, &limits)
    }

    /// Tokens of the conversation so far, prompts and answers.
    pub fn tokens(&self) -> &[u32] {
        &self.tokens
    }

    /// Tokens that the model has taken in: all of [`tokens`](Self::tokens), or all but the newest.
    pub fn position(&self) -> usize {
        self.decoder.as_ref().map_or(0, Decoder::position)
    }

    fn push(&mut self, id: u32) {
        self.tokens.push(id);
    }

    /// Takes in a prompt, behind whatever was generated last.
    fn prefill(&mut self, prompt: &[u32]) -> Result<Vec<f32>> {
        if self.decoder.is_none() {
            self.decoder = Some(Decoder::new(self.engine)?);
        }
        self.tokens.extend(prompt);
        self.step()
    }

    /// Takes in what is new.
    fn step(&mut self) -> Result<Vec<f32>> {
        let position = self.position();
        let decoder = self.decoder.as_mut().expect("a prompt came first");
        decoder.feed(&self.engine.model, &self.engine.device, &self.tokens[position..])
    }

    /// The next tokens by greedy choice, at most `count`, where the path can choose them by itself.
    fn run_ahead(&mut self, count: usize) -> Result<Option<Vec<u32>>> {
        let newest = *self.tokens.last().expect("a prompt came first");
        self.decoder.as_mut().expect("a prompt came first").run_ahead(newest, count)
    }
}
