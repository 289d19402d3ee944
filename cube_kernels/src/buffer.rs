//! Typed views of raw CubeCL handles, and why a kernel refuses to run.

use core::fmt;
use core::marker::PhantomData;

use cubecl::bytes::Bytes;
use cubecl::client::Client;
use cubecl::prelude::*;
use cubecl::server::Handle;

/// `len` elements of type `T` at the start of a device buffer. It shares the buffer: cloning copies nothing.
///
/// ```no_run
/// # use cube_kernels::Buffer;
/// # fn f(client: &cubecl::client::Client) {
/// let x = Buffer::<f32>::from_slice(client, &[1.0, 2.0, 3.0, 4.0]);
/// assert_eq!(x.read_blocking(client).unwrap().len(), 4);
/// # }
/// ```
#[derive(Debug)]
pub struct Buffer<T> {
    handle: Handle,
    len: usize,
    element: PhantomData<T>,
}

impl<T> Clone for Buffer<T> {
    fn clone(&self) -> Self {
        Self { handle: self.handle.clone(), len: self.len, element: PhantomData }
    }
}

impl<T: CubeElement> Buffer<T> {
    /// Views `handle`, which must hold `len` elements without padding between them.
    ///
    /// # Errors
    /// [`Rejected`] if the handle is too small.
    pub fn new(handle: Handle, len: usize) -> Result<Self, Rejected> {
        let bytes = len * size_of::<T>();
        if handle.size_in_used() < bytes as u64 {
            let reason = format!("{len} elements are {bytes} bytes, the handle has {}", handle.size_in_used());
            return Err(Rejected::new("buffer", reason));
        }
        Ok(Self { handle, len, element: PhantomData })
    }

    /// Allocates without filling.
    pub fn empty(client: &Client, len: usize) -> Self {
        Self { handle: client.empty(len * size_of::<T>()), len, element: PhantomData }
    }

    /// Uploads `data`.
    pub fn from_slice(client: &Client, data: &[T]) -> Self {
        Self { handle: client.create_from_slice(T::as_bytes(data)), len: data.len(), element: PhantomData }
    }

    /// Overwrites the elements. Not while a graph is being captured.
    ///
    /// # Panics
    /// If `data` has another length.
    pub fn write(&self, client: &Client, data: Vec<T>) {
        assert_eq!(data.len(), self.len, "elements written to a buffer of {}", self.len);
        client.write(&self.handle, Bytes::from_elems(data));
    }

    /// Reads the elements back; waits for the device.
    ///
    /// # Errors
    /// The device's message if it failed or if a launch that should have written this buffer did.
    pub fn read_blocking(&self, client: &Client) -> Result<Vec<T>, String> {
        let bytes = client.read_one(self.handle.clone()).map_err(|e| e.to_string())?;
        Ok(T::from_bytes(&bytes)[..self.len].to_vec())
    }

    /// Elements, not bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there are no elements.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The untyped device buffer.
    pub fn handle(&self) -> &Handle {
        &self.handle
    }

    /// The kernel argument, seen as elements of `bytes` bytes each.
    pub(crate) fn arg_of(&self, bytes: usize) -> BufferArg {
        // SAFETY: `new` checked that the handle holds `len` elements, and callers check `len` against their shapes.
        unsafe { BufferArg::from_raw_parts(self.handle.clone(), self.len * size_of::<T>() / bytes) }
    }

    /// The kernel argument, element by element.
    pub(crate) fn arg(&self) -> BufferArg {
        self.arg_of(size_of::<T>())
    }
}

/// Why a kernel was not launched. Nothing ran.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rejected {
    /// The kernel that refused.
    pub kernel: &'static str,
    /// What it got and what it expected.
    pub reason: String,
}

impl Rejected {
    pub(crate) fn new(kernel: &'static str, reason: impl Into<String>) -> Self {
        Self { kernel, reason: reason.into() }
    }

    /// An error unless `ok`.
    pub(crate) fn unless(ok: bool, kernel: &'static str, reason: impl FnOnce() -> String) -> Result<(), Self> {
        if ok { Ok(()) } else { Err(Self::new(kernel, reason())) }
    }
}

impl fmt::Display for Rejected {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "kernel {}: {}", self.kernel, self.reason)
    }
}

impl std::error::Error for Rejected {}
