//! How what was tuned follows the batch: the learning rate by a scaling rule, and the optimizer's own values.

mod optimizer;
mod scaling;

pub use optimizer::{Decay, Moments, Optimizer};
pub use scaling::{Card, Noise, RampRule, Rule};
pub(crate) use {optimizer::decay, scaling::lr_scale};
