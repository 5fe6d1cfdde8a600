//! One row's input: a recipe, a cluster, the settings; every field with its name and its legal values.

mod check;
mod device_batches;
mod fields;
mod policy;
mod precision;
mod recipe;
mod settings;
mod types;
mod value;

pub use device_batches::DeviceBatches;
pub use fields::{Cluster, Field, Input, MAX_GPUS, Recipe, Record, Settings};
pub use policy::Policy;
pub use precision::Precision;
pub use types::{Betas, Checked, Name};
pub use value::{FieldKind, Read, Value};
