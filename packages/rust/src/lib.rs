//! Runs PyTorch models that smelt has compiled to files, by libsmelt. README.md has a program.
//!
//! A skeleton: inference of a file with one entry point. `smelt.h` documents what the C library can do beyond.
use std::ffi::{c_char, c_int, CStr, CString};
use std::path::Path;
use std::ptr;

mod ffi {
    use super::*;

    #[repr(C)]
    pub struct Error {
        pub status: c_int,
        pub message: [c_char; 256],
    }

    #[repr(C)]
    pub struct Tensor {
        pub dtype: c_int,
        pub rank: c_int,
        pub sizes: *const i64,
        pub strides: *const i64,
        pub data: *mut u8,
    }

    pub enum Model {}
    pub enum Session {}

    extern "C" {
        pub fn smelt_model_open(path: *const c_char, options: *const u8, model: *mut *mut Model, error: *mut Error) -> c_int;
        pub fn smelt_model_close(model: *mut Model);
        pub fn smelt_model_output_count(model: *const Model) -> usize;
        pub fn smelt_session_new(model: *mut Model, options: *const u8, session: *mut *mut Session, error: *mut Error) -> c_int;
        pub fn smelt_session_free(session: *mut Session);
        pub fn smelt_run(session: *mut Session, inputs: *const Tensor, count: usize, error: *mut Error) -> c_int;
        pub fn smelt_output(session: *const Session, number: usize, output: *mut Tensor, error: *mut Error) -> c_int;
    }
}

/// What went wrong: the status of `smelt.h`, and a sentence.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Error {
    pub status: i32,
    pub message: String,
}

impl std::fmt::Display for Error {
    fn fmt(&self, to: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        to.write_str(&self.message)
    }
}

impl std::error::Error for Error {}

fn check(call: impl FnOnce(*mut ffi::Error) -> c_int) -> Result<(), Error> {
    let mut error = ffi::Error { status: 0, message: [0; 256] };
    match call(&mut error) {
        0 => Ok(()),
        status => {
            // SAFETY: a call that fails writes a text that ends with a zero byte.
            let message = unsafe { CStr::from_ptr(error.message.as_ptr()) };
            Err(Error { status, message: message.to_string_lossy().into_owned() })
        }
    }
}

mod private {
    pub trait Sealed {}
}

/// A type of elements, and its number in `smelt.h`. Every pattern of bits is a value of it.
pub trait Element: Copy + private::Sealed {
    const DTYPE: i32;
}

macro_rules! elements {
    ($($kind:ty = $dtype:literal),*) => {
        $(impl private::Sealed for $kind {} impl Element for $kind { const DTYPE: i32 = $dtype; })*
    };
}

elements!(u8 = 1, i8 = 2, i16 = 3, i32 = 4, i64 = 5, f32 = 8, f64 = 9, u16 = 12, u32 = 13, u64 = 14);

/// An input: contiguous elements, and their sizes. A run may write to inputs that the model writes.
pub struct Input<'a> {
    dtype: i32,
    sizes: &'a [i64],
    data: *mut u8,
}

impl<'a> Input<'a> {
    /// Panics if the sizes are not those of `data`.
    pub fn new<T: Element>(data: &'a mut [T], sizes: &'a [i64]) -> Self {
        let count = sizes.iter().try_fold(1usize, |count, &size| count.checked_mul(usize::try_from(size).ok()?));
        assert_eq!(count, Some(data.len()), "the sizes {sizes:?} are not those of the data");
        Input { dtype: T::DTYPE, sizes, data: data.as_mut_ptr().cast() }
    }
}

/// An output, in memory of the session until its next run.
pub struct Output<'a> {
    dtype: i32,
    sizes: &'a [i64],
    data: *const u8,
}

impl Output<'_> {
    pub fn sizes(&self) -> &[i64] {
        self.sizes
    }

    /// The elements; None if they are of another type.
    pub fn values<T: Element>(&self) -> Option<&[T]> {
        let count = self.sizes.iter().product::<i64>() as usize;
        if self.dtype != T::DTYPE {
            return None;
        }
        if count == 0 {
            return Some(&[]);
        }
        // SAFETY: the library's outputs are contiguous, of this dtype, and aligned to 64 bytes.
        Some(unsafe { std::slice::from_raw_parts(self.data.cast(), count) })
    }
}

/// An open file and a session that runs it, one call at a time. Make one for each thread.
pub struct Session {
    model: *mut ffi::Model,
    session: *mut ffi::Session,
}

// SAFETY: the library allows any thread to use a session, one at a time.
unsafe impl Send for Session {}

impl Session {
    /// Opens a file and checks all of it.
    ///
    /// # Safety
    /// The file has machine code, which `run` executes: open only files that you trust. It must not be changed in place
    /// while it is open.
    pub unsafe fn open(path: impl AsRef<Path>) -> Result<Self, Error> {
        let wrong = |_| Error { status: 1, message: "the path has a zero byte".into() };
        let path = CString::new(path.as_ref().to_string_lossy().as_bytes()).map_err(wrong)?;
        let mut opened = Session { model: ptr::null_mut(), session: ptr::null_mut() };
        check(|error| unsafe { ffi::smelt_model_open(path.as_ptr(), ptr::null(), &mut opened.model, error) })?;
        check(|error| unsafe { ffi::smelt_session_new(opened.model, ptr::null(), &mut opened.session, error) })?;
        Ok(opened)
    }

    /// Runs the model on all its inputs, in their order. A run that fails leaves the model's state unchanged.
    pub fn run(&mut self, inputs: &mut [Input<'_>]) -> Result<(), Error> {
        let tensors: Vec<_> = inputs
            .iter()
            .map(|each| ffi::Tensor {
                dtype: each.dtype,
                rank: each.sizes.len() as c_int,
                sizes: each.sizes.as_ptr(),
                strides: ptr::null(),
                data: each.data,
            })
            .collect();
        // SAFETY: each input borrows its data and sizes, which are as long as they say.
        check(|error| unsafe { ffi::smelt_run(self.session, tensors.as_ptr(), tensors.len(), error) })
    }

    pub fn output_count(&self) -> usize {
        // SAFETY: the model is open.
        unsafe { ffi::smelt_model_output_count(self.model) }
    }

    /// An output of the last run.
    pub fn output(&self, number: usize) -> Result<Output<'_>, Error> {
        let mut found =
            ffi::Tensor { dtype: -1, rank: 0, sizes: ptr::null(), strides: ptr::null(), data: ptr::null_mut() };
        // SAFETY: the library fills the tensor, whose memory stays until the next run, which borrows the session.
        check(|error| unsafe { ffi::smelt_output(self.session, number, &mut found, error) })?;
        let sizes = match found.rank {
            0 => &[][..],
            rank => unsafe { std::slice::from_raw_parts(found.sizes, rank as usize) },
        };
        Ok(Output { dtype: found.dtype, sizes, data: found.data })
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        // SAFETY: both are null, or were made by the library and are freed once.
        unsafe {
            ffi::smelt_session_free(self.session);
            ffi::smelt_model_close(self.model);
        }
    }
}
