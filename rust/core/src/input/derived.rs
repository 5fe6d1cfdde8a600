//! Values that follow from several fields of a recipe or of the settings.

use super::choices::DurationScale;
use super::{Recipe, Settings};
use crate::rules::{Moments, Noise, Optimizer};

impl Recipe {
    /// The optimizer's running averages, by the recipe or by the optimizer's defaults.
    pub(crate) fn moments(&self) -> Moments {
        let defaults = self.optimizer.defaults();
        let or = |value: f64, default: f64| if value.is_nan() { default } else { value };
        Moments {
            beta1: or(self.betas.0, defaults.beta1),
            beta2: or(self.betas.1, defaults.beta2),
            eps: or(self.eps, defaults.eps),
        }
    }

    /// The measured noise of the gradient.
    pub(crate) fn noise(&self) -> Noise {
        Noise { scale: self.noise_scale, sigma_sq: self.sigma_sq, mu_sq: self.mu_sq, power: self.power }
    }

    /// Whether the noise scale was measured.
    pub(crate) fn knows_noise(&self) -> bool {
        !self.noise_scale.is_nan()
    }

    /// Whether there is weight decay of which nobody said how the optimizer multiplies it.
    pub(crate) fn decay_unknown(&self) -> bool {
        self.weight_decay > 0.0 && self.decay_unsaid()
    }

    /// As [`decay_unknown`](Recipe::decay_unknown), if there is weight decay.
    pub(crate) fn decay_unsaid(&self) -> bool {
        let coupled =
            matches!(self.optimizer, Optimizer::Sgd | Optimizer::Adam | Optimizer::RmsProp | Optimizer::Lars);
        self.decay.is_none() && !coupled
    }

    /// Whether it says what the units of its schedule's lengths are worth.
    pub(crate) fn knows_units(&self) -> bool {
        self.schedule.is_none_or(|curve| {
            (self.dataset_size.is_some() || !curve.epochs) && (self.seq_len.is_some() || !curve.tokens)
        })
    }

    /// Whether the loss of a sample depends on the other samples of its micro-batch.
    pub(crate) fn couples(&self) -> bool {
        self.batch_norm || self.coupled.is_some()
    }

    /// The micro-batch of the tuned run: as it is said, or what follows from its batch, GPUs and passes.
    pub(crate) fn tuned_micro_batch(&self) -> Option<u64> {
        let equal = self.device_batches.is_none();
        let derived = || Some(self.effective_batch / self.tuned_replicas()?.max(1) / self.accumulation?);
        self.micro_batch.or_else(|| if equal { derived() } else { None })
    }

    /// The replicas that the recipe was tuned on.
    pub(crate) fn tuned_replicas(&self) -> Option<u64> {
        self.gpus.map(|gpus| gpus / self.model_parallel)
    }
}

impl Settings {
    /// The run's length over the tuned one's, as far as it was said.
    pub(crate) fn duration_ratio(&self) -> f64 {
        self.duration_scale.map_or(1.0, |scale| scale.ratio)
    }

    /// The factor of the learning rate for a run of another length than the tuned one: (T0/T)^p, where a
    /// power is asked for.
    pub(crate) fn lr_by_duration(&self) -> f64 {
        match self.duration_scale {
            Some(DurationScale { ratio, power: Some(power) }) => ratio.powf(-power),
            _ => 1.0,
        }
    }

    /// The samples of the run over those of the tuned one, where the learning rate follows them.
    pub(crate) fn followed_ratio(&self) -> f64 {
        self.duration_scale.filter(|scale| scale.power.is_some()).map_or(1.0, |scale| scale.ratio)
    }

    /// The one micro-batch that is allowed, where the least is the most.
    pub(crate) fn fixed_micro_batch(&self) -> Option<u64> {
        self.max_micro_batch.filter(|&most| most > 1 && most == self.min_micro_batch)
    }

    /// The divisor of each micro-batch: with this as its cap too, a fixed one is the only multiple.
    pub(crate) fn divisor(&self) -> u64 {
        self.fixed_micro_batch().unwrap_or(self.micro_batch_multiple)
    }
}
