//! What the settings say together of a micro-batch.

use super::Settings;

impl Settings {
    /// What multiplies the learning rate because the run has another length than the tuned one: (T0/T)^p, where a power is asked for.
    #[must_use]
    pub fn duration_scale(&self) -> f64 {
        self.duration_power.map_or(1.0, |power| self.duration_ratio.powf(-power))
    }

    /// The samples of the run over those of the tuned one, where the learning rate follows them.
    #[must_use]
    pub fn followed_ratio(&self) -> f64 {
        if self.duration_power.is_some() { self.duration_ratio } else { 1.0 }
    }

    /// The largest micro-batch that was asked for.
    #[must_use]
    pub fn asked_micro_batch(&self) -> Option<u64> {
        self.fixed_micro_batch.or(self.max_micro_batch)
    }

    /// What the micro-batch should be a multiple of: with this as its cap too, a fixed one is the only multiple.
    #[must_use]
    pub fn wanted_multiple(&self) -> u64 {
        self.fixed_micro_batch.unwrap_or(self.micro_batch_multiple)
    }

    /// What the micro-batch must be a multiple of.
    #[must_use]
    pub fn demanded_multiple(&self) -> u64 {
        let multiple = if self.require_multiple { self.micro_batch_multiple } else { 1 };
        self.fixed_micro_batch.unwrap_or(multiple)
    }
}
