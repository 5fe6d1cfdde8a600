//! The reasons' names and texts as C reads them.

use std::ffi::{CString, c_int};
use std::sync::LazyLock;

use isobatch_core::reason::Reason;

/// A reason's texts.
pub struct Card {
    /// Its name.
    pub name: CString,
    /// What it says.
    pub text: CString,
}

static CARDS: LazyLock<Vec<Card>> = LazyLock::new(|| {
    let text = |text: &str| CString::new(text).unwrap_or_default();
    Reason::ALL.iter().map(|reason| Card { name: text(reason.name()), text: text(reason.text()) }).collect()
});

/// The reason of a bit in `reasons`.
pub fn card(bit: c_int) -> Option<&'static Card> {
    CARDS.get(usize::try_from(bit).ok()?)
}
