//! One row: from a recipe, a cluster and the settings to a plan, or to the reasons why there is none.

mod caution;
mod grid;
mod layout;
mod replicas;
pub(crate) mod results;
mod row;
mod scale;
mod single;
mod steps;
mod ways_out;

pub use row::{Cap, Nearest, Row, UNKNOWN};
pub use scale::ramp_scale;
pub use single::{plan, plan_or_not};
pub use steps::stages;
pub(crate) use steps::tuned_warmup;
