//! Keys or values computed elsewhere into a cache that decode attention reads.
//!
//! **Fuses**: the copy to the cache's slots and the change of format (f32 to bf16 rounds to nearest even, bf16 to f32 is
//! exact).
//!
//! **Supported**: source `[K, tokens, D]` in f32 or packed bf16, contiguous; cache `[K, slots, D]` in either; the tokens go
//! to the first slots of every head. **Rejected**: an odd D, more tokens than slots, buffers of other sizes.
//!
//! **Bytes moved**: source once read, as many elements written.

mod kernel;
mod launch;
mod reference;

pub use launch::{KvImport, kv_import};
pub use reference::kv_import_reference;
