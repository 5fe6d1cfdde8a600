//! Many rows: columns in, columns out, in parallel.

mod choose;
mod chunks;
mod columns;
mod fleet;
mod lanes;
mod one_by_one;
mod results;

pub use choose::{Chosen, Criterion};
pub use columns::{InputColumn, InputTable, MISSING};
pub use fleet::{Fleet, Pairs};
pub use results::{Cell, ElementType, ResultColumn, ResultSlice};
