//! The batches of unequal devices.

use crate::batch::MAX_BATCH;

/// The batches of unequal devices, one for each replica: what a plan needs of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeviceBatches {
    /// Samples of all of them.
    pub samples: u64,
    /// How many there are.
    pub devices: u64,
}

impl DeviceBatches {
    /// That of a list; `None` where it is empty, or one of them is no batch.
    #[must_use]
    pub fn of(batches: impl IntoIterator<Item = Option<i64>>) -> Option<DeviceBatches> {
        let (mut samples, mut devices) = (0_u64, 0);
        for batch in batches {
            let batch = batch.and_then(|n| u64::try_from(n).ok()).filter(|n| (1..=MAX_BATCH).contains(n))?;
            samples = samples.saturating_add(batch);
            devices += 1;
        }
        (devices > 0).then_some(DeviceBatches { samples, devices })
    }
}
