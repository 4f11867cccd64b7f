//! Heap profiles of a running program: which code holds how much memory.
//!
//! ```
//! # #[global_allocator]
//! # static GLOBAL: hakmem::Hakmem = hakmem::Hakmem;
//! hakmem::profile::start(0)?;
//! // … the program works …
//! let answer: Vec<u8> = hakmem::profile::pprof()?;
//! # assert!(!answer.is_empty());
//! hakmem::profile::stop()?;
//! # Ok::<(), hakmem::Error>(())
//! ```
use crate::control::{result, Error};
use core::ffi::c_void;
use core::slice;
use hakmem_sys as sys;
use std::ffi::CString;
use std::vec::Vec;

/// Switches the profile on, with one sample in `rate_bytes` (0: as `HAKMEM_HEAP_PROFILE_RATE` says). Blocks that are older are
/// unknown to it. While it is on, this changes the rate alone.
pub fn start(rate_bytes: usize) -> Result<(), Error> {
    // SAFETY: no precondition.
    result(unsafe { sys::hakmem_profile_start(rate_bytes) })
}

/// Switches the profile off. What it holds stays readable; blocks that are freed are noted still.
pub fn stop() -> Result<(), Error> {
    // SAFETY: no precondition.
    result(unsafe { sys::hakmem_profile_stop() })
}

/// Forgets all samples, and begins anew.
pub fn reset() -> Result<(), Error> {
    // SAFETY: no precondition.
    result(unsafe { sys::hakmem_profile_reset() })
}

/// Labels what the calling thread allocates from here on: a request, a tenant, a query. 0: none.
pub fn set_label(label: u64) {
    // SAFETY: no precondition.
    unsafe { sys::hakmem_label_set(label) }
}

/// The calling thread's label.
pub fn label() -> u64 {
    // SAFETY: no precondition.
    unsafe { sys::hakmem_label_get() }
}

/// Names a label; at most 255 bytes.
pub fn name_label(label: u64, text: &str) -> Result<(), Error> {
    let text = CString::new(text).map_err(|_| Error::Invalid)?;
    // SAFETY: the text ends by a zero byte.
    result(unsafe { sys::hakmem_label_name(label, text.as_ptr()) })
}

unsafe extern "C" fn append(context: *mut c_void, data: *const c_void, bytes: usize) -> sys::c_int {
    let whole = &mut *context.cast::<Vec<u8>>();
    if whole.try_reserve(bytes).is_err() {
        return 12; // ENOMEM: a panic must not leave this function
    }
    whole.extend_from_slice(slice::from_raw_parts(data.cast(), bytes));
    0
}

fn written(format: sys::c_int) -> Result<Vec<u8>, Error> {
    let mut whole = Vec::new();
    let context: *mut Vec<u8> = &mut whole;
    // SAFETY: the library calls the function with the context, and with memory that is readable meanwhile.
    result(unsafe { sys::hakmem_profile_write(sys::HAKMEM_PROFILE_ALL, format, Some(append), context.cast()) })?;
    Ok(whole)
}

/// The profile as pprof reads it (profile.proto, uncompressed), of addresses: pprof finds the names in the program's files.
/// [`Error::ProfileOff`] where it has never been on.
pub fn pprof() -> Result<Vec<u8>, Error> {
    written(sys::HAKMEM_PROFILE_PROTO)
}

/// All there is, as the command `hakmem profile` reads it.
pub fn json() -> Result<Vec<u8>, Error> {
    written(sys::HAKMEM_PROFILE_JSON)
}
