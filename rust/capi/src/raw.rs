//! From C's pointers to slices and texts: all that has to be trusted is here.

use std::ffi::{CStr, c_char};

use crate::fail::{Fail, null};

/// Whether a slice may begin here and have so many elements.
fn can_be<T>(first: *const T, count: usize) -> bool {
    first.is_aligned()
        && count.checked_mul(size_of::<T>()).is_some_and(|bytes| isize::try_from(bytes).is_ok())
}

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
    if !can_be(first, count) {
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
    if first.is_null() || !can_be(first, count) {
        return Err(Fail::wrong("memory to write to is null, not aligned, or larger than memory".to_owned()));
    }
    // SAFETY: as in `slice`.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_larger_than_memory_is_refused() {
        let mut one = [0_u64];
        for count in [usize::MAX, isize::MAX as usize] {
            // SAFETY: no slice is made.
            assert!(unsafe { slice(one.as_ptr(), count) }.is_err());
            // SAFETY: as above.
            assert!(unsafe { slice_mut(one.as_mut_ptr(), count) }.is_err());
        }
    }
}
