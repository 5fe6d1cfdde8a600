//! Worker threads that survive a fork: a forked child has none of its parent's threads, and rayon's global pool
//! would wait for them forever, so each process gets a pool of its own.
use std::sync::{Arc, Mutex, PoisonError};

use rayon::{ThreadPool, ThreadPoolBuilder};

static POOL: Mutex<Option<(u32, Arc<ThreadPool>)>> = Mutex::new(None);

/// Runs `work` in this process's pool.
pub fn install<R: Send>(work: impl FnOnce() -> R + Send) -> R {
    let pool = {
        let mut slot = POOL.lock().unwrap_or_else(PoisonError::into_inner);
        match &*slot {
            Some((owner, pool)) if *owner == std::process::id() => pool.clone(),
            _ => {
                let pool = Arc::new(ThreadPoolBuilder::new().build().expect("threads can be started"));
                // The parent's pool must not be dropped here: that would wake threads which do not exist.
                std::mem::forget(slot.replace((std::process::id(), pool.clone())));
                pool
            }
        }
    };
    pool.install(work)
}
