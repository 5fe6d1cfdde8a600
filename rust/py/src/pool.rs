//! The thread pool of bulk calls, one per process.
//!
//! A forked child has none of its parent's threads and would wait for them for ever, so that the pool belongs to a
//! process id. Call it with the GIL detached; run small inputs without it.

use std::process;
use std::sync::{Arc, Mutex};

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
