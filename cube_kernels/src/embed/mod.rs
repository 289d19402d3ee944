//! A row of an embedding table as f32: `h = table[token] · scale`, the token read from the state buffer.
//!
//! **Fuses**: gather, bf16 → f32, scale. [`Row`] says where the row comes from: a table on the device, possibly split over
//! several buffers (a binding limit may be smaller than the table), or a row that the host uploaded.
//!
//! **Supported**: bf16 `[V, width]`, an even width, up to [`MAX_PARTS`] parts that hold equally many whole rows (the last
//! may hold fewer). **Rejected**: other shapes. A token beyond the table reads its last row.
//!
//! **Bytes moved**: width · 2 read, width · 4 written.

mod kernel;
mod launch;
mod reference;

pub(crate) use kernel::{TokenRow, row_pair};
pub use launch::{MAX_PARTS, Row, embed};
pub use reference::embed_reference;
