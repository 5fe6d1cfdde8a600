//! Threads for bulk work. A forked child has none of its parent's: the pool belongs to one process id.

use std::sync::{Arc, Mutex, PoisonError};

use rayon::{ThreadPool, ThreadPoolBuilder};

type Pool = (u32, usize, Arc<ThreadPool>);
static POOL: Mutex<Option<Pool>> = Mutex::new(None);

/// This process's pool of `threads` (0: one a core), kept until another number is asked for.
pub fn pool(threads: usize) -> Arc<ThreadPool> {
    let mut kept = POOL.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some((pid, size, pool)) = &*kept
        && (*pid, *size) == (std::process::id(), threads)
    {
        return Arc::clone(pool);
    }
    let pool =
        Arc::new(ThreadPoolBuilder::new().num_threads(threads).build().expect("threads can be started"));
    let old = kept.replace((std::process::id(), threads, Arc::clone(&pool)));
    if let Some((pid, _, parents)) = old
        && pid != std::process::id()
    {
        // Its threads do not exist here: waiting for them to end would never end.
        std::mem::forget(parents);
    }
    pool
}
