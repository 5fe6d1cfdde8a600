//! One row of the result.

use super::results::results;
use crate::batch;
use crate::forecast::{ClusterProfile, Outlook};
use crate::input::{MAX_GPUS, Recipe, Settings};
use crate::reason::{Reason, Reasons};
use crate::rules::{Moments, Rule};

/// A count that is not known, in a column.
pub const UNKNOWN: i64 = -1;

/// The value of a column that is not known.
trait Unknown {
    const VALUE: Self;
}

impl Unknown for i64 {
    const VALUE: i64 = UNKNOWN;
}

impl Unknown for f64 {
    const VALUE: f64 = f64::NAN;
}

macro_rules! row {
    (of $row:ident, of $lanes:ident $recipe:ident $i:ident;
     $(#[doc = $text:literal] $variant:ident $name:ident {
         $(type: $field:ty,)? element: $element:ident, moved: $moved:ident, role: $role:ident,
         row: $of_row:expr, lane: $of_lane:expr,
     })*) => {
        /// The values of one row; [`UNKNOWN`] or NaN where one is not known or there is no plan.
        #[derive(Clone, Copy, Debug)]
        #[allow(missing_docs, reason = "named as what they hold")]
        pub struct Row {
            $($(#[doc = $text] pub $name: $field,)?)*
            pub reasons: Reasons,
            pub rule: Rule,
            pub moments: Moments,
            pub outlook: Outlook,
            pub nearest_world_size: Nearest,
            pub nearest_batch: Nearest,
            pub cap: Cap,
        }

        impl Row {
            /// A row that holds nothing yet.
            #[must_use]
            pub fn unknown() -> Row {
                Row {
                    $($($name: <$field as Unknown>::VALUE,)?)*
                    reasons: Reasons::default(),
                    rule: Rule::None,
                    moments: Moments { beta1: f64::NAN, beta2: f64::NAN, eps: f64::NAN },
                    outlook: Outlook::UNKNOWN,
                    nearest_world_size: Nearest::NONE,
                    nearest_batch: Nearest::NONE,
                    cap: Cap::Open,
                }
            }
        }
    };
}

results!(row);

/// The values that would work, next to one that does not; [`UNKNOWN`] where there is none.
#[derive(Clone, Copy, Debug)]
pub struct Nearest {
    /// The largest below.
    pub below: i64,
    /// The smallest above.
    pub above: i64,
    /// The nearer of the two, ties to the smaller.
    pub nearest: i64,
}

impl Nearest {
    pub(super) const NONE: Nearest = Nearest { below: UNKNOWN, above: UNKNOWN, nearest: UNKNOWN };

    pub(super) fn of(value: u64, below: Option<u64>, above: Option<u64>) -> Nearest {
        let column = |n: Option<u64>| n.map_or(UNKNOWN, as_column);
        Nearest {
            below: column(below),
            above: column(above),
            nearest: column(batch::nearer(value, below, above)),
        }
    }

    /// As [`of`](Self::of) for GPU counts, of which none is above what a cluster may have.
    pub(super) fn of_gpus(value: u64, below: Option<u64>, above: Option<u64>) -> Nearest {
        Nearest::of(value, below, above.filter(|&gpus| gpus <= MAX_GPUS))
    }
}

/// The limit of the micro-batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cap {
    /// `max_micro_batch`, which is `min_micro_batch` too.
    Fixed(u64),
    /// `max_micro_batch`.
    Setting(u64),
    /// The GPU's memory, by the profile.
    Memory(u64),
    /// The tuned micro-batch.
    Tuned(u64),
    /// Nothing.
    Open,
}

impl Cap {
    /// The limit that the job sets.
    pub(super) fn of(recipe: &Recipe, settings: &Settings) -> Cap {
        match (settings.max_micro_batch, recipe.tuned_micro_batch()) {
            (Some(cap), _) if settings.fixed_micro_batch().is_some() => Cap::Fixed(cap),
            (Some(cap), _) => Cap::Setting(cap),
            (None, Some(cap)) => Cap::Tuned(cap),
            (None, None) => Cap::Open,
        }
    }

    /// With the profile of its cluster; an error where not even one sample fits in memory.
    pub(crate) fn here(
        recipe: &Recipe,
        settings: &Settings,
        profile: Option<&ClusterProfile<'_>>,
    ) -> Result<Cap, Reason> {
        match profile {
            Some(profile) if settings.max_micro_batch.is_none() => {
                let memory = profile.memory_cap()?;
                Ok(memory.map_or(Cap::of(recipe, settings), Cap::Memory))
            }
            _ => Ok(Cap::of(recipe, settings)),
        }
    }

    /// The largest micro-batch allowed.
    #[must_use]
    pub fn samples(self) -> u64 {
        match self {
            Cap::Fixed(samples) | Cap::Setting(samples) | Cap::Memory(samples) | Cap::Tuned(samples) => {
                samples
            }
            Cap::Open => u64::MAX,
        }
    }
}

impl Row {
    /// Half a plan is no plan: of an infeasible row only the cluster's shape and the ways out are kept.
    pub(super) fn forget(&mut self) {
        let Row { world_size, data_parallel, reasons, rule, nearest_world_size, nearest_batch, cap, .. } =
            *self;
        *self = Row {
            world_size,
            data_parallel,
            reasons,
            rule,
            nearest_world_size,
            nearest_batch,
            cap,
            ..Row::unknown()
        };
    }
}

#[allow(clippy::cast_possible_wrap, reason = "every count is at most 2^53")]
pub(super) fn as_column(n: u64) -> i64 {
    n as i64
}
