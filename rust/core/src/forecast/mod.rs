//! Time, memory and money of a plan, and the batch that brings the loss down soonest.

mod allreduce;
mod goodput;
mod model;
mod outlook;
mod shape;
mod workload;

pub use allreduce::{AllReduceTable, Constant, Link};
pub(crate) use goodput::{Case, optimize};
pub use model::{Forecast, Measured, Profile};
pub(crate) use outlook::{ClusterProfile, Fitted, within_limits};
pub use outlook::{Outlook, Verdict};
pub use shape::{Placement, Shape};
pub use workload::{Workload, noise_over_run};
