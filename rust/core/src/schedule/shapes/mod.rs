//! The shapes: curves from 1 at u = 0 towards 0, a file for each or for a few alike, and the one line that
//! lists it.

mod cosine;
mod exponential;
mod power;
mod table;
mod tanh;

pub use cosine::Cosine;
pub use exponential::Exponential;
pub(crate) use power::Monomial;
pub use power::{Power, Reciprocal, Rex};
pub use table::{Constant, Table};
pub use tanh::Tanh;

use super::error::ScheduleError;
use super::expansion::{Expander, Expansion};
use super::record::Record;

/// A shape: its name, its form and its values.
pub trait Curve: Sized {
    /// The shape's name in a form.
    const NAME: &'static str;

    /// The shape that a form describes; an error where a field is missing or out of range.
    fn read(record: &Record) -> Result<Self, ScheduleError>;

    /// The value at u of at least 0.
    fn at(&self, u: f64) -> f64;

    /// The one power that the shape is made of, if that needs a series.
    fn monomial(&self) -> Option<Monomial> {
        None
    }

    /// A polynomial for the shape from `u` on, if there is one.
    fn series(&self, u: f64, expander: &Expander) -> Option<Expansion> {
        self.monomial().map(|monomial| monomial.series(u, expander))
    }

    /// The largest |value| from u = 0 to here.
    fn largest(&self, _u: f64) -> f64 {
        1.0
    }

    /// Whether the formula stops at u = 1.
    fn stops(&self) -> bool {
        false
    }
}

macro_rules! shapes {
    ($($(#[$doc:meta])* $name:ident),* $(,)?) => {
        /// The curve of a segment, as a share of the way from `b` to `a`.
        #[derive(Debug, Clone, PartialEq)]
        pub enum Shape {
            $($(#[$doc])* $name($name)),*
        }

        impl Shape {
            /// The names of all shapes.
            pub const NAMES: &'static [&'static str] = &[$($name::NAME),*];

            pub(crate) fn read(record: &Record) -> Result<Self, ScheduleError> {
                match &*record.name {
                    $($name::NAME => $name::read(record).map(Self::$name),)*
                    name => {
                        let names = Self::NAMES.join(", ");
                        Err(ScheduleError::new("shape", format!("must be one of {names}, got {name:?}")))
                    }
                }
            }

            pub(crate) fn at(&self, u: f64) -> f64 {
                match self { $(Self::$name(shape) => shape.at(u)),* }
            }

            pub(crate) fn monomial(&self) -> Option<Monomial> {
                match self { $(Self::$name(shape) => shape.monomial()),* }
            }

            pub(crate) fn series(&self, u: f64, expander: &Expander) -> Option<Expansion> {
                match self { $(Self::$name(shape) => shape.series(u, expander)),* }
            }

            pub(crate) fn largest(&self, u: f64) -> f64 {
                match self { $(Self::$name(shape) => shape.largest(u)),* }
            }

            pub(crate) fn stops(&self) -> bool {
                match self { $(Self::$name(shape) => shape.stops()),* }
            }
        }
    };
}

shapes! {
    /// 1 throughout.
    Constant,
    /// (1 − u^stretch)^exponent.
    Power,
    /// ((1 + cos π·waves·u^stretch)/2)^exponent.
    Cosine,
    /// rate^u.
    Exponential,
    /// (1 + u)^−exponent.
    Reciprocal,
    /// (1 − u)/(1 − u/2).
    Rex,
    /// (1 − tanh z)/2.
    Tanh,
    /// Listed values.
    Table,
}
