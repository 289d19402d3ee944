//! The few vector operations that the products need, and the portable version of them.

/// One instruction set. `V` holds `LANES` values of 32 bits.
///
/// # Safety
/// Every method may only run where the instruction set is present, inlined into a function that enables it, and
/// pointers must be valid for all that is read or written; no method asks for alignment.
pub(super) trait Simd: Copy + 'static {
    type V: Copy;
    const LANES: usize;
    /// Rows of x whose sums over two vectors of columns fit in the registers.
    const ROWS: usize;

    unsafe fn zero() -> Self::V;
    unsafe fn splat(p: *const f32) -> Self::V;
    unsafe fn load(p: *const f32) -> Self::V;
    unsafe fn store(p: *mut f32, v: Self::V);
    unsafe fn add(a: Self::V, b: Self::V) -> Self::V;
    /// `a * b + c`.
    unsafe fn fma(a: Self::V, b: Self::V, c: Self::V) -> Self::V;
    /// `LANES` bf16, widened.
    unsafe fn bf16(p: *const u8) -> Self::V;
    /// The two bf16 of each lane, widened: those at even places in memory, those at odd places.
    unsafe fn widen(pairs: Self::V) -> (Self::V, Self::V);
    /// Sixteen bytes of each of `LANES` rows that lie `stride` bytes apart, transposed: vector `i` holds the `i`th
    /// four bytes of every row.
    unsafe fn transposed(rows: *const u8, stride: isize) -> [Self::V; 4];
    unsafe fn prefetch(_p: *const u8) {}
}

/// What every target has; the compiler vectorises it as far as the target's baseline goes.
#[derive(Clone, Copy)]
pub(super) struct Portable;

impl Simd for Portable {
    type V = [f32; 8];
    const LANES: usize = 8;
    const ROWS: usize = 2;

    #[inline(always)]
    unsafe fn zero() -> [f32; 8] {
        [0.0; 8]
    }

    #[inline(always)]
    unsafe fn splat(p: *const f32) -> [f32; 8] {
        [unsafe { *p }; 8]
    }

    #[inline(always)]
    unsafe fn load(p: *const f32) -> [f32; 8] {
        unsafe { p.cast::<[f32; 8]>().read_unaligned() }
    }

    #[inline(always)]
    unsafe fn store(p: *mut f32, v: [f32; 8]) {
        unsafe { p.cast::<[f32; 8]>().write(v) }
    }

    #[inline(always)]
    unsafe fn add(a: [f32; 8], b: [f32; 8]) -> [f32; 8] {
        std::array::from_fn(|i| a[i] + b[i])
    }

    #[inline(always)]
    unsafe fn fma(a: [f32; 8], b: [f32; 8], c: [f32; 8]) -> [f32; 8] {
        // Not `mul_add`: without the instruction that is a library call.
        std::array::from_fn(|i| a[i] * b[i] + c[i])
    }

    #[inline(always)]
    unsafe fn bf16(p: *const u8) -> [f32; 8] {
        let bits = unsafe { p.cast::<[u16; 8]>().read_unaligned() };
        std::array::from_fn(|i| f32::from_bits(u32::from(bits[i]) << 16))
    }

    #[inline(always)]
    unsafe fn widen(pairs: [f32; 8]) -> ([f32; 8], [f32; 8]) {
        let (first, second) = if cfg!(target_endian = "little") { (16, 0) } else { (0, 16) };
        let part = |up: u32| pairs.map(|v| f32::from_bits((v.to_bits() << up) & 0xffff_0000));
        (part(first), part(second))
    }

    #[inline(always)]
    unsafe fn transposed(rows: *const u8, stride: isize) -> [[f32; 8]; 4] {
        let rows: [[f32; 4]; 8] = std::array::from_fn(|r| {
            // SAFETY: the caller's promise.
            unsafe { rows.wrapping_offset(r as isize * stride).cast::<[f32; 4]>().read_unaligned() }
        });
        std::array::from_fn(|i| std::array::from_fn(|r| rows[r][i]))
    }
}
