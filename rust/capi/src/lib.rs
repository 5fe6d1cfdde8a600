//! The C ABI: plans for schedulers that are not in Python. `include/isobatch.h` says how it is called.
//!
//! Only `raw` turns pointers into slices and texts, by what the header demands of the caller; this file has the exported names.
//! No panic crosses the border: it becomes a code.
#![deny(missing_docs)]

mod columns;
mod fail;
mod fields;
mod raw;
mod reasons;
mod row;

use std::ffi::{c_char, c_int};

use columns::{Column, Results};
use fail::{Message, answer};
use fields::Pair;
use row::PlanRow;

/// The version, as `isobatch --version` has it.
#[unsafe(no_mangle)]
pub extern "C" fn isobatch_version() -> *const c_char {
    concat!(env!("CARGO_PKG_VERSION"), "\0").as_ptr().cast()
}

/// The name of the reason with this bit; null where there is none.
#[unsafe(no_mangle)]
pub extern "C" fn isobatch_reason_name(bit: c_int) -> *const c_char {
    reasons::card(bit).map_or(std::ptr::null(), |card| card.name.as_ptr())
}

/// What the reason with this bit says; null where there is none.
#[unsafe(no_mangle)]
pub extern "C" fn isobatch_reason_text(bit: c_int) -> *const c_char {
    reasons::card(bit).map_or(std::ptr::null(), |card| card.text.as_ptr())
}

/// Plans one job; gives a code, and says in `message` what is wrong.
///
/// # Safety
/// `given` points to `count` pairs of texts, `row` to a row, `message` to `room` bytes that may be written (or is null).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn isobatch_plan(
    given: *const Pair,
    count: usize,
    row: *mut PlanRow,
    message: *mut c_char,
    room: usize,
) -> c_int {
    // SAFETY: as demanded of the caller.
    let (given, row, message) =
        unsafe { (raw::slice(given, count), row.as_mut(), Message::new(message, room)) };
    answer(message, || row::plan_into(given?, row.ok_or_else(|| fail::null("row"))?))
}

/// Plans every job on every cluster; gives a code, and says in `message` what is wrong.
///
/// # Safety
/// Each pointer leads to as many values as the number beside it, each column's to its table's rows; `message` as above.
#[unsafe(no_mangle)]
#[allow(
    clippy::too_many_arguments,
    reason = "three lists, two numbers of rows and the message, as C has them"
)]
pub unsafe extern "C" fn isobatch_plan_columns(
    jobs: *const Column,
    job_columns: usize,
    job_rows: usize,
    clusters: *const Column,
    cluster_columns: usize,
    cluster_rows: usize,
    shared: *const Pair,
    shared_count: usize,
    results: *const Results,
    result_count: usize,
    message: *mut c_char,
    room: usize,
) -> c_int {
    // SAFETY: as demanded of the caller.
    let (jobs, clusters, shared, results, message) = unsafe {
        (
            raw::slice(jobs, job_columns),
            raw::slice(clusters, cluster_columns),
            raw::slice(shared, shared_count),
            raw::slice(results, result_count),
            Message::new(message, room),
        )
    };
    answer(message, || columns::plan_into((jobs?, job_rows), (clusters?, cluster_rows), shared?, results?))
}
