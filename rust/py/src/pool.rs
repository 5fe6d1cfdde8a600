//! The thread pool of bulk calls, one per process.
//!
//! A forked child has none of its parent's threads and would wait for them for ever, so that the pool belongs to a
//! process id. Call it with the GIL detached; run small inputs without it.

use std::process;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use pyo3::prelude::*;
use rayon::{ThreadPool, ThreadPoolBuilder};

static POOL: Mutex<Option<(u32, Arc<ThreadPool>)>> = Mutex::new(None);

/// Runs `work` where rayon's parallel iterators use this process's pool.
///
/// It has `RAYON_NUM_THREADS` threads, else one per core that the process may use.
pub fn install<R: Send>(work: impl FnOnce() -> R + Send) -> R {
    match pool() {
        Some(pool) => pool.install(work),
        // No thread could be started: the caller's own will do.
        None => work(),
    }
}

/// How often a bulk call looks for Ctrl-C.
const WATCH: Duration = Duration::from_millis(50);

/// Runs `work` as `install` does, with the GIL detached, and sets its flag when a signal (Ctrl-C) comes in.
///
/// # Errors
/// What the signal's handler raised, such as `KeyboardInterrupt`.
pub fn interruptible<R: Send>(py: Python<'_>, work: impl FnOnce(&AtomicBool) -> R + Send) -> PyResult<R> {
    let stop = AtomicBool::new(false);
    let Some(pool) = pool() else {
        return Ok(py.detach(|| work(&stop)));
    };
    let mut raised = None;
    let result = py.detach(|| {
        let (done, result) = channel();
        pool.in_place_scope(|scope| {
            scope.spawn(|_| {
                // The other end waits until this was sent.
                let _ = done.send(work(&stop));
            });
            loop {
                match result.recv_timeout(WATCH) {
                    Ok(value) => return Some(value),
                    Err(RecvTimeoutError::Disconnected) => return None,
                    Err(RecvTimeoutError::Timeout) if raised.is_none() => {
                        raised = Python::attach(|py| py.check_signals().err());
                        stop.store(raised.is_some(), Ordering::Relaxed);
                    }
                    Err(RecvTimeoutError::Timeout) => {}
                }
            }
        })
    });
    match (raised, result) {
        (Some(error), _) => Err(error),
        (None, Some(value)) => Ok(value),
        // The scope has raised the worker's panic already.
        (None, None) => unreachable!("the worker ended without a result"),
    }
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
    ThreadPoolBuilder::new().thread_name(|index| format!("isobatch-{index}")).build().ok().map(Arc::new)
}
