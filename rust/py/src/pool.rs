//! The thread pool of bulk calls, one per process.
//!
//! A forked child has none of its parent's threads and would wait for them for ever, so that the pool belongs
//! to a process id. Call it with the GIL detached; run small inputs without it.

use std::hint::black_box;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use pyo3::exceptions::PyMemoryError;
use pyo3::prelude::*;
use rayon::prelude::*;
use rayon::{ThreadPool, ThreadPoolBuilder};

use crate::errors::fault;

/// Bytes of a bulk call beside its results: threads with their stacks, blocks of rows. A small allocation
/// that fails ends the process; a large one that is only tried says so before.
const HEADROOM: usize = 32 << 20;

/// How long a Ctrl-C may go unseen.
const SIGNALS: Duration = Duration::from_millis(100);

static POOL: Mutex<Option<(u32, Arc<ThreadPool>)>> = Mutex::new(None);

/// Runs `work` in this process's pool without Python's lock, while the calling thread looks for signals:
/// where one raises, such as Ctrl-C, the flag that `work` is given is set, and the exception comes back as
/// soon as `work` has seen it and ended. A panic comes back as a `RuntimeError`. The pool has
/// `RAYON_NUM_THREADS` threads, else one per core that the process may use.
pub fn run<R: Send>(py: Python<'_>, work: impl FnOnce(&AtomicBool) -> R + Send) -> PyResult<R> {
    // Behind a black box: an allocation that nobody uses may be optimized away.
    black_box(&mut Vec::<u8>::new()).try_reserve_exact(HEADROOM).map_err(|_| {
        PyMemoryError::new_err("less than 32 MiB of memory are left, which planning needs beside its results")
    })?;
    let stop = &AtomicBool::new(false);
    let guarded = move || catch_unwind(AssertUnwindSafe(|| work(stop))).map_err(|_| fault());
    py.detach(|| {
        let Some(pool) = pool() else {
            return guarded();
        };
        let (done, result) = channel();
        pool.in_place_scope(|scope| {
            scope.spawn(move |_| {
                // After a signal nobody waits for it.
                let _ = done.send(guarded());
            });
            loop {
                match result.recv_timeout(SIGNALS) {
                    Ok(result) => return result,
                    Err(RecvTimeoutError::Disconnected) => return Err(fault()),
                    Err(RecvTimeoutError::Timeout) => {
                        if let Err(raised) = signals() {
                            stop.store(true, Ordering::Relaxed);
                            return Err(raised);
                        }
                    }
                }
            }
        })
    })
}

/// Runs `work` on the calling thread without Python's lock. A panic comes back as a `RuntimeError`.
pub fn alone<R: Send>(py: Python<'_>, work: impl FnOnce() -> R + Send) -> PyResult<R> {
    py.detach(|| catch_unwind(AssertUnwindSafe(work)).map_err(|_| fault()))
}

/// Runs `work` as [`run`] does, or [`alone`] where there is `little` of it.
pub fn run_unless<R: Send>(
    py: Python<'_>,
    little: bool,
    work: impl FnOnce(&AtomicBool) -> R + Send,
) -> PyResult<R> {
    if little { alone(py, || work(&AtomicBool::new(false))) } else { run(py, work) }
}

/// The results of `work`, in the order of the rows; few rows are done on the calling thread, many as in
/// [`run`].
pub fn run_rows<T: Send>(
    py: Python<'_>,
    rows: usize,
    serial: usize,
    work: impl Fn(usize) -> T + Send + Sync,
) -> PyResult<Vec<T>> {
    if rows < serial {
        return alone(py, || (0..rows).map(work).collect());
    }
    let done = run(py, |stop| {
        let row = |row| (!stop.load(Ordering::Relaxed)).then(|| work(row));
        (0..rows).into_par_iter().with_min_len(64).map(row).collect::<Option<Vec<T>>>()
    })?;
    // Only a call that has raised was stopped.
    done.ok_or_else(fault)
}

/// Only the main thread hears signals; another passes this at once.
#[allow(
    clippy::redundant_closure_for_method_calls,
    reason = "the method is not general enough in its lifetime"
)]
fn signals() -> PyResult<()> {
    Python::attach(|py| py.check_signals())
}

fn pool() -> Option<Arc<ThreadPool>> {
    // A fork may have caught another thread holding the lock; waiting for it here would never end.
    let Ok(mut slot) = POOL.try_lock() else {
        return start();
    };
    let me = process::id();
    if let Some((owner, pool)) = slot.as_ref()
        && *owner == me
    {
        return Some(Arc::clone(pool));
    }
    let fresh = start()?;
    // The parent's pool must not be dropped here: its threads, which dropping wakes, do not exist.
    std::mem::forget(slot.replace((me, Arc::clone(&fresh))));
    Some(fresh)
}

fn start() -> Option<Arc<ThreadPool>> {
    // `RAYON_NUM_THREADS` may ask for any number, but more than a few a core only wait for each other. 0 is
    // rayon's own choice.
    let requested =
        std::env::var("RAYON_NUM_THREADS").ok().and_then(|text| text.trim().parse::<usize>().ok());
    let most = thread::available_parallelism().map_or(64, |cores| 64.max(4 * cores.get()));
    let threads = requested.map_or(0, |threads| threads.min(most));
    ThreadPoolBuilder::new()
        .num_threads(threads)
        .thread_name(|index| format!("isobatch-{index}"))
        .build()
        .ok()
        .map(Arc::new)
}
