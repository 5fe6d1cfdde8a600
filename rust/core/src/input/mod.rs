//! One row's input: a recipe, a cluster, the settings; every field with its name and its legal values.

mod check;
mod choices;
mod derived;
mod fields;
mod typed;
mod types;
mod value;

pub use choices::{Adapter, Beta2Rule, Coupling, DeviceBatches, DurationScale, Policy, Precision, SplitRule};
pub use fields::{Cluster, Field, Input, MAX_GPUS, Recipe, Record, Settings};
pub use types::{Betas, Checked};
pub use value::{FieldKind, Read, Value};
