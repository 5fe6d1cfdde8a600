//! What a plan costs in time, memory and money, and which batch brings the loss down soonest.

mod allreduce;
mod constants;
mod goodput;
#[cfg(test)]
pub(crate) use model::tests;
mod model;
mod outlook;
mod shape;
mod workload;

pub use allreduce::AllReduceTable;
pub use constants::{Constant, Link};
pub use goodput::{Best, Case, optimize};
pub use model::{Forecast, Measured, Profile};
pub use outlook::{ClusterProfile, Fitted, Outlook, Verdict, within_limits};
pub use shape::{Placement, Shape};
pub use workload::{Workload, noise_over_run};
