//! The inner loop: up to `R` rows of x against four rows of w.
//!
//! Both run along K. Each of the `4 * R` results has one vector of partial sums that takes one product per lane and
//! step, whatever `R` is and wherever w comes from, so a row of x gets the same bits alone and among others.

use super::simd::Simd;

/// Rows of w that are taken together.
pub(super) const COLUMNS: usize = 4;

/// Partial sums of `R` rows of x with four rows of w.
pub(super) type Sums<S, const R: usize> = [[<S as Simd>::V; COLUMNS]; R];

/// Four rows of w in some form, read a pair of vectors (`2 * LANES` values of one row) at a time.
pub(super) trait Rows<S: Simd>: Copy {
    /// # Safety
    /// Pair `i` of all four rows must exist.
    unsafe fn pair(self, column: usize, i: usize) -> (S::V, S::V);
}

/// bf16 rows as they are in the file: even places, odd places.
#[derive(Clone, Copy)]
pub(super) struct Bf16Rows(pub [*const u8; COLUMNS]);

impl<S: Simd> Rows<S> for Bf16Rows {
    #[inline(always)]
    unsafe fn pair(self, column: usize, i: usize) -> (S::V, S::V) {
        unsafe { S::widen(self.0[column].wrapping_add(i * S::LANES * 4)) }
    }
}

/// f32 rows as they are in the file.
#[derive(Clone, Copy)]
pub(super) struct F32Rows(pub [*const u8; COLUMNS]);

impl<S: Simd> Rows<S> for F32Rows {
    #[inline(always)]
    unsafe fn pair(self, column: usize, i: usize) -> (S::V, S::V) {
        let p = self.0[column].wrapping_add(i * S::LANES * 8);
        unsafe { (S::load(p), S::load(p.wrapping_add(S::LANES * 4))) }
    }
}

/// Widened rows, interleaved: `[pair][half][column][lane]` f32.
#[derive(Clone, Copy)]
pub(super) struct TileRows(pub *const f32);

impl<S: Simd> Rows<S> for TileRows {
    #[inline(always)]
    unsafe fn pair(self, column: usize, i: usize) -> (S::V, S::V) {
        let p = self.0.wrapping_add((2 * i * COLUMNS + column) * S::LANES);
        unsafe { (S::load(p.cast()), S::load(p.wrapping_add(COLUMNS * S::LANES).cast())) }
    }
}

/// Memory to ask for while computing: from `at`, `step` bytes further with each pair.
#[derive(Clone, Copy)]
pub(super) struct Ahead {
    pub at: *const u8,
    pub step: usize,
}

/// `sums[r][c] += x[r] · w[c]` over `pairs` pairs of vectors. x is `[pair][half][r][lane]`.
///
/// # Safety
/// x must hold `pairs * 2 * R * LANES` f32 and w must have all its pairs; see [`Simd`].
#[inline(always)]
pub(super) unsafe fn accumulate<S: Simd, W: Rows<S>, const R: usize>(
    x: *const f32,
    w: W,
    pairs: usize,
    sums: &mut Sums<S, R>,
    ahead: Option<Ahead>,
) {
    let mut acc = *sums;
    let mut x = x.cast::<u8>();
    for i in 0..pairs {
        if let Some(ahead) = ahead {
            // SAFETY: a prefetch of any address is harmless.
            unsafe { S::prefetch(ahead.at.wrapping_add(i * ahead.step)) }
        }
        let next = x.wrapping_add(R * S::LANES * 4);
        for column in 0..COLUMNS {
            unsafe {
                let (a, b) = w.pair(column, i);
                for r in 0..R {
                    acc[r][column] = S::fma(a, S::load(x.wrapping_add(r * S::LANES * 4)), acc[r][column]);
                }
                for r in 0..R {
                    acc[r][column] = S::fma(b, S::load(next.wrapping_add(r * S::LANES * 4)), acc[r][column]);
                }
            }
        }
        x = next.wrapping_add(R * S::LANES * 4);
    }
    *sums = acc;
}
