//! The operands as plain memory.

use half::bf16;

/// How a weight is stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stored {
    F32,
    Bf16,
}

impl Stored {
    pub(super) fn bytes(self) -> usize {
        match self {
            Self::F32 => 4,
            Self::Bf16 => 2,
        }
    }
}

/// A weight `[rows, columns]` somewhere in a buffer: at any address, with any strides (in elements).
#[derive(Clone, Copy, Debug)]
pub struct Weight<'a> {
    bytes: &'a [u8],
    pub(super) stored: Stored,
    pub(super) shape: [usize; 2],
    start: usize,
    strides: [isize; 2],
}

impl<'a> Weight<'a> {
    /// Rows one after the other from the start of `bytes`.
    ///
    /// # Panics
    /// When the buffer is too short.
    pub fn rows(bytes: &'a [u8], stored: Stored, shape: [usize; 2]) -> Self {
        let stride = isize::try_from(shape[1]).expect("a row fits in memory");
        Self::strided(bytes, stored, shape, 0, [stride, 1])
    }

    /// Element `[n, k]` lies `start + n * strides[0] + k * strides[1]` elements into `bytes`.
    ///
    /// # Panics
    /// When an element would lie outside of `bytes`.
    pub fn strided(bytes: &'a [u8], stored: Stored, shape: [usize; 2], start: usize, strides: [isize; 2]) -> Self {
        if shape[0] > 0 && shape[1] > 0 {
            let reach = |i: usize| (shape[i] as i128 - 1) * strides[i] as i128;
            let first = start as i128 + reach(0).min(0) + reach(1).min(0);
            let last = start as i128 + reach(0).max(0) + reach(1).max(0);
            let held = (bytes.len() / stored.bytes()) as i128;
            assert!(0 <= first && last < held, "weight {shape:?} with strides {strides:?} leaves its {held} elements");
        }
        Self { bytes, stored, shape, start, strides }
    }

    /// Whether the values of a row follow each other.
    pub(super) fn rows_are_dense(&self) -> bool {
        self.strides[1] == 1 || self.shape[1] == 1
    }

    /// From one row to the next.
    pub(super) fn row_bytes(&self) -> isize {
        self.strides[0] * self.stored.bytes() as isize
    }

    /// The address of an element.
    pub(super) fn at(&self, row: usize, column: usize) -> *const u8 {
        debug_assert!(row < self.shape[0] && column < self.shape[1]);
        let element = self.start as isize + row as isize * self.strides[0] + column as isize * self.strides[1];
        self.bytes.as_ptr().wrapping_offset(element * self.stored.bytes() as isize)
    }

    /// One element, widened.
    pub(super) fn get(&self, row: usize, column: usize) -> f32 {
        let p = self.at(row, column);
        // SAFETY: the constructor checked that every element lies in the buffer.
        unsafe {
            match self.stored {
                Stored::F32 => p.cast::<f32>().read_unaligned(),
                Stored::Bf16 => p.cast::<bf16>().read_unaligned().to_f32(),
            }
        }
    }
}
