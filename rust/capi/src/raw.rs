//! From C's pointers to slices and texts: all that has to be trusted is here.

use std::ffi::{CStr, c_char};

use crate::fail::{Fail, null};

/// A list of C's; an empty one may be null.
///
/// # Safety
/// `first` points to `count` values that nobody writes meanwhile.
pub unsafe fn slice<'a, T>(first: *const T, count: usize) -> Result<&'a [T], Fail> {
    if count == 0 {
        return Ok(&[]);
    }
    if first.is_null() {
        return Err(null("a list that is not empty"));
    }
    if !first.is_aligned()
        || count.checked_mul(size_of::<T>()).is_none_or(|bytes| bytes > isize::MAX as usize)
    {
        return Err(Fail::wrong("a list is not aligned, or larger than memory".to_owned()));
    }
    // SAFETY: not null, aligned, of a size that can be, and there by what is demanded of the caller.
    Ok(unsafe { std::slice::from_raw_parts(first, count) })
}

/// Memory of C's to be written.
///
/// # Safety
/// `first` points to `count` values that nobody else reads or writes meanwhile.
pub unsafe fn slice_mut<'a, T>(first: *mut T, count: usize) -> Result<&'a mut [T], Fail> {
    if count == 0 {
        return Ok(&mut []);
    }
    if first.is_null() || !first.is_aligned() {
        return Err(Fail::wrong("a result's memory is null, or not aligned".to_owned()));
    }
    // SAFETY: as above; the callers check the size first.
    Ok(unsafe { std::slice::from_raw_parts_mut(first, count) })
}

/// A text of C's; null is none.
///
/// # Safety
/// `text` is null or ends in a zero byte.
pub unsafe fn text<'a>(text: *const c_char) -> Result<Option<&'a str>, Fail> {
    if text.is_null() {
        return Ok(None);
    }
    // SAFETY: not null, and it ends, by what is demanded of the caller.
    let text = unsafe { CStr::from_ptr(text) };
    text.to_str().map(Some).map_err(|_| Fail::wrong("a text is no UTF-8".to_owned()))
}
