//! The few vector operations that the products need, and the portable version of them.

/// One instruction set. `V` holds `LANES` f32.
///
/// # Safety
/// Every method may only run where the instruction set is present, inlined into a function that enables it, and
/// pointers must be valid for the whole vector; no method asks for alignment.
pub(super) trait Simd: Copy + 'static {
    type V: Copy;
    const LANES: usize;
    /// Rows of x whose sums fit in the registers beside four rows of w, when w comes from a widened tile.
    const TILE_ROWS: usize;
    /// The same when bf16 is widened on the way, which needs registers too.
    const DIRECT_ROWS: usize;

    unsafe fn zero() -> Self::V;
    unsafe fn load(p: *const u8) -> Self::V;
    unsafe fn store(p: *mut f32, v: Self::V);
    /// `a * b + c`.
    unsafe fn fma(a: Self::V, b: Self::V, c: Self::V) -> Self::V;
    /// Widens `2 * LANES` bf16: those at even places, those at odd places.
    unsafe fn widen(p: *const u8) -> (Self::V, Self::V);
    /// The sum of the lanes of each of four vectors, always in the same order.
    unsafe fn sums(v: [Self::V; 4]) -> [f32; 4];
    unsafe fn prefetch(_p: *const u8) {}
}

/// What every target has; the compiler vectorises it as far as the target's baseline goes.
#[derive(Clone, Copy)]
pub(super) struct Portable;

impl Simd for Portable {
    type V = [f32; 8];
    const LANES: usize = 8;
    const TILE_ROWS: usize = 1;
    const DIRECT_ROWS: usize = 1;

    #[inline(always)]
    unsafe fn zero() -> [f32; 8] {
        [0.0; 8]
    }

    #[inline(always)]
    unsafe fn load(p: *const u8) -> [f32; 8] {
        unsafe { p.cast::<[f32; 8]>().read_unaligned() }
    }

    #[inline(always)]
    unsafe fn store(p: *mut f32, v: [f32; 8]) {
        unsafe { p.cast::<[f32; 8]>().write_unaligned(v) }
    }

    #[inline(always)]
    unsafe fn fma(a: [f32; 8], b: [f32; 8], c: [f32; 8]) -> [f32; 8] {
        // Not `mul_add`: without the instruction that is a library call.
        std::array::from_fn(|i| a[i] * b[i] + c[i])
    }

    #[inline(always)]
    unsafe fn widen(p: *const u8) -> ([f32; 8], [f32; 8]) {
        let raw = unsafe { p.cast::<[u16; 16]>().read_unaligned() };
        let wide = |h: u16| f32::from_bits(u32::from(h) << 16);
        (std::array::from_fn(|i| wide(raw[2 * i])), std::array::from_fn(|i| wide(raw[2 * i + 1])))
    }

    #[inline(always)]
    unsafe fn sums(v: [[f32; 8]; 4]) -> [f32; 4] {
        v.map(|v| {
            let q: [f32; 4] = std::array::from_fn(|i| v[i] + v[i + 4]);
            (q[0] + q[2]) + (q[1] + q[3])
        })
    }
}
