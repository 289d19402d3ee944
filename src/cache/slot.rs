//! One layer's keys and values: everything (full attention) or a ring of the last `window` tokens.

use burn::tensor::{FloatDType, Tensor};

/// Buffers grow in steps of at least this many tokens.
const MIN_GROWTH: usize = 64;

/// The keys and values that one step attends to.
#[derive(Debug, Clone)]
pub struct KvView {
    /// `[B, K, S, D]`
    pub k: Tensor<4>,
    /// `[B, K, S, D]`
    pub v: Tensor<4>,
}

impl KvView {
    /// Tokens in view.
    pub fn len(&self) -> usize {
        self.k.dims()[2]
    }

    /// Whether there is nothing to see.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The newest `len` tokens of a view that is in order.
    pub fn last(&self, len: usize) -> Self {
        self.map(|t| narrow_tokens(t, t.dims()[2] - len, len))
    }

    fn map(&self, f: impl Fn(&Tensor<4>) -> Tensor<4>) -> Self {
        Self { k: f(&self.k), v: f(&self.v) }
    }

    fn zip(self, other: Self, f: impl Fn(Tensor<4>, Tensor<4>) -> Tensor<4>) -> Self {
        Self { k: f(self.k, other.k), v: f(self.v, other.v) }
    }
}

/// The store of one owning layer. A copy is cheap: buffers are shared until one side writes.
#[derive(Debug, Clone)]
pub(super) struct Slot {
    window: Option<usize>,
    /// `None` keeps the dtype of what comes.
    format: Option<FloatDType>,
    /// Token `p` is at `p`, or at `p % window` once a windowed slot is full.
    buffer: Option<KvView>,
}

impl Slot {
    pub(super) fn new(window: Option<usize>, format: Option<FloatDType>) -> Self {
        Self { window, format, buffer: None }
    }

    /// Releases the buffers.
    pub(super) fn clear(&mut self) {
        self.buffer = None;
    }

    /// Bytes of the buffers on the device.
    pub(super) fn bytes(&self) -> usize {
        let size = |t: &Tensor<4>| t.shape().num_elements() * t.dtype().size();
        self.buffer.as_ref().map_or(0, |b| size(&b.k) + size(&b.v))
    }

    /// What is kept of `position` tokens, in the order of the buffer: token `p` at `p`, or at `p % window`.
    #[cfg(feature = "cube")]
    pub(super) fn stored(&self, position: usize) -> Option<KvView> {
        let len = self.window.map_or(position, |window| position.min(window));
        self.buffer.as_ref().map(|buffer| buffer.map(|t| narrow_tokens(t, 0, len)))
    }

    /// Stores `new` behind the `position` tokens seen so far and returns what its queries attend to: the tokens still in
    /// reach, in order, except that a single token may see a full ring in ring order.
    pub(super) fn append(&mut self, position: usize, new: KvView) -> KvView {
        let Some(format) = self.format else { return self.append_as_is(position, new) };
        let computed = new.k.dtype().into();
        let view = self.append_as_is(position, new.map(|t| t.clone().cast(format)));
        view.map(|t| t.clone().cast::<FloatDType>(computed))
    }

    fn append_as_is(&mut self, position: usize, new: KvView) -> KvView {
        match self.window {
            Some(window) if position + new.len() > window => self.append_ring(window, position, new),
            _ => self.append_in_order(position, new),
        }
    }

    fn append_in_order(&mut self, position: usize, new: KvView) -> KvView {
        let len = position + new.len();
        let buffer = match self.buffer.take() {
            None => new,
            Some(old) => self.grown(old, position, len).zip(new, |old, new| write_tokens(old, position, new)),
        };
        let view = buffer.map(|t| narrow_tokens(t, 0, len));
        self.buffer = Some(buffer);
        view
    }

    fn append_ring(&mut self, window: usize, position: usize, new: KvView) -> KvView {
        let count = new.len();
        if count == 1 && position >= window {
            let old = self.buffer.take().expect("a slot holds the tokens before `position`");
            let buffer = old.zip(new, |old, new| write_tokens(old, position % window, new));
            self.buffer = Some(buffer.clone());
            return buffer;
        }
        let joined = match self.past(window, position) {
            None => new,
            Some(past) => past.zip(new, |past, new| Tensor::cat(vec![past, new], 2)),
        };
        let start = (position + count - window) % window;
        self.buffer = Some(joined.last(window).map(|t| match start {
            0 => t.clone(),
            _ => Tensor::cat(vec![narrow_tokens(t, window - start, start), narrow_tokens(t, 0, window - start)], 2),
        }));
        joined
    }

    /// The tokens before `position` that the next query can still see, in order.
    fn past(&self, window: usize, position: usize) -> Option<KvView> {
        let keep = position.min(window - 1);
        let buffer = self.buffer.as_ref().filter(|_| keep > 0)?;
        let first = position - keep;
        if position <= window {
            return Some(buffer.map(|t| narrow_tokens(t, first, keep)));
        }
        let (from, to) = (first % window, position % window);
        Some(buffer.map(|t| match from < to || to == 0 {
            true => narrow_tokens(t, from, keep),
            false => Tensor::cat(vec![narrow_tokens(t, from, window - from), narrow_tokens(t, 0, to)], 2),
        }))
    }

    /// `old` with room for `len` tokens; the first `used` are kept.
    fn grown(&self, old: KvView, used: usize, len: usize) -> KvView {
        let capacity = old.len();
        if len <= capacity {
            return old;
        }
        let roomy = len.max(capacity + (capacity / 2).max(MIN_GROWTH));
        let roomy = self.window.map_or(roomy, |window| roomy.min(window));
        old.map(|t| {
            let [b, k, _, d] = t.dims();
            let room = Tensor::zeros([b, k, roomy, d], (&t.device(), t.dtype()));
            write_tokens(room, 0, narrow_tokens(t, 0, used))
        })
    }
}

fn narrow_tokens(t: &Tensor<4>, start: usize, len: usize) -> Tensor<4> {
    if start == 0 && len == t.dims()[2] { t.clone() } else { t.clone().narrow(2, start, len) }
}

fn write_tokens(into: Tensor<4>, at: usize, new: Tensor<4>) -> Tensor<4> {
    let [b, k, len, d] = new.dims();
    into.slice_assign([0..b, 0..k, at..at + len, 0..d], new)
}
