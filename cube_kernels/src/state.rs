//! The words of the `u32` state buffer that lets one captured graph serve every token.

/// Where the token being computed stands in its sequence.
pub const POSITION: usize = 0;
/// The token being computed: input of `embed`, written by `argmax`.
pub const TOKEN: usize = 1;
/// Tokens written so far; the ring buffer's next place is `STEP % ring length`.
pub const STEP: usize = 2;
/// 0, or [`NOT_FINITE`].
pub const ERROR: usize = 3;
/// 1 once an end token was chosen: later steps neither choose nor advance, so that steps which were enqueued too many
/// change nothing. It stays until the host clears it.
pub const HALTED: usize = 4;
/// Words of the buffer.
pub const LEN: usize = 8;

/// Value of [`ERROR`] after a logit was NaN or infinite. It stays until the host clears it.
pub const NOT_FINITE: u32 = 1;
