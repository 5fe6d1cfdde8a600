//! What a recipe says by several of its fields.

use super::Recipe;
use crate::rules::{Moments, Noise, Optimizer};

impl Recipe {
    /// The optimizer's running averages, by the recipe or by the optimizer's defaults.
    #[must_use]
    pub fn moments(&self) -> Moments {
        let defaults = self.optimizer.defaults();
        let or = |value: f64, default: f64| if value.is_nan() { default } else { value };
        Moments {
            beta1: or(self.betas.0, defaults.beta1),
            beta2: or(self.betas.1, defaults.beta2),
            eps: or(self.eps, defaults.eps),
        }
    }

    /// What was measured of the gradient's noise.
    #[must_use]
    pub fn noise(&self) -> Noise {
        Noise { scale: self.noise_scale, sigma_sq: self.sigma_sq, mu_sq: self.mu_sq, power: self.power }
    }

    /// Whether the noise scale was measured.
    #[must_use]
    pub fn knows_noise(&self) -> bool {
        !self.noise_scale.is_nan()
    }

    /// Whether there is weight decay of which nobody said how the optimizer multiplies it.
    #[must_use]
    pub fn decay_unknown(&self) -> bool {
        self.weight_decay > 0.0 && self.decay_unsaid()
    }

    /// As [`decay_unknown`](Recipe::decay_unknown), if there is weight decay.
    pub(crate) fn decay_unsaid(&self) -> bool {
        let coupled =
            matches!(self.optimizer, Optimizer::Sgd | Optimizer::Adam | Optimizer::RmsProp | Optimizer::Lars);
        self.decay.is_none() && !coupled
    }

    /// The replicas that the recipe was tuned on.
    #[must_use]
    pub fn tuned_replicas(&self) -> Option<u64> {
        self.gpus.map(|gpus| gpus / self.model_parallel)
    }
}
