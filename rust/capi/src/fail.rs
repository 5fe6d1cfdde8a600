//! What is wrong: a code, and a message in the caller's memory.

use std::ffi::{c_char, c_int};
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Why there is no answer.
#[derive(Debug)]
pub struct Fail {
    code: c_int,
    says: String,
}

const WRONG: c_int = 1;
const UNKNOWN: c_int = 2;
const ILLEGAL: c_int = 3;
const FAULT: c_int = 4;

impl Fail {
    /// The call itself cannot be: a null, a size, a text that is none.
    pub fn wrong(says: String) -> Fail {
        Fail { code: WRONG, says }
    }

    /// There is no such field or column.
    pub fn unknown(kind: &str, name: &str) -> Fail {
        Fail { code: UNKNOWN, says: format!("unknown {kind} '{name}'") }
    }

    /// A value that its field cannot have.
    pub fn illegal(name: &str, legal: &str) -> Fail {
        Fail { code: ILLEGAL, says: format!("{name} must be {legal}") }
    }
}

/// A null where something must be.
pub fn null(what: &str) -> Fail {
    Fail::wrong(format!("{what} is null"))
}

/// Memory for a message; where there is none, nothing is said.
pub struct Message<'a>(&'a mut [u8]);

impl Message<'_> {
    /// # Safety
    /// `first` is null or points to `room` bytes that nobody else reads or writes meanwhile.
    pub unsafe fn new<'a>(first: *mut c_char, room: usize) -> Message<'a> {
        // SAFETY: as demanded of the caller; bytes are always aligned.
        let bytes = unsafe { crate::raw::slice_mut(first.cast(), if first.is_null() { 0 } else { room }) };
        Message(bytes.unwrap_or(&mut []))
    }

    /// Writes a text, cut where it does not fit, and the zero behind it.
    fn write(self, text: &str) {
        let Some(most) = self.0.len().checked_sub(1) else { return };
        let mut end = text.len().min(most);
        while !text.is_char_boundary(end) {
            end -= 1;
        }
        self.0[..end].copy_from_slice(&text.as_bytes()[..end]);
        self.0[end] = 0;
    }
}

/// Does the work; gives 0, or the code of what is wrong and its message.
pub fn answer(message: Message<'_>, work: impl FnOnce() -> Result<(), Fail>) -> c_int {
    let found = catch_unwind(AssertUnwindSafe(work));
    let fail = match found {
        Ok(Ok(())) => {
            message.write("");
            return 0;
        }
        Ok(Err(fail)) => fail,
        Err(_) => Fail { code: FAULT, says: "a fault of isobatch itself; please report it".to_owned() },
    };
    message.write(&fail.says);
    fail.code
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_is_cut_between_letters_and_ends() {
        let mut bytes = [7_u8; 4];
        Message(&mut bytes).write("aéé");
        assert_eq!(bytes, [b'a', 0xc3, 0xa9, 0]);
        Message(&mut []).write("nowhere");
        Message(&mut bytes[..1]).write("no room");
        assert_eq!(bytes[0], 0);
    }

    #[test]
    fn a_panic_becomes_a_code() {
        let mut bytes = [0_u8; 64];
        let quiet = std::panic::take_hook();
        std::panic::set_hook(Box::new(|_| {}));
        let code = answer(Message(&mut bytes), || panic!("inside"));
        std::panic::set_hook(quiet);
        assert_eq!(code, FAULT);
        assert!(bytes.starts_with(b"a fault of isobatch itself"));
    }
}
